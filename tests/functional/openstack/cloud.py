# SPDX-License-Identifier: Apache-2.0

"""Keystone, Glance and Placement for the tests."""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Mapping
from pathlib import Path

from keystoneauth1 import session
from keystoneauth1.adapter import Adapter
from keystoneauth1.identity import v3
from oslo_config import cfg

from tests.functional.openstack.service import Service

PASSWORD = "not a secret"
REGION = "lab"
#: The largest number of images on a page of Glance, regardless of the limit.
PAGE = 3


class Cloud:
    """One of each below a directory, all on SQLite.

    :ivar placement: configured and in the catalogue; its fixture starts it.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.store = home / "store"
        self.keystone = Service(
            "keystone",
            "keystone.wsgi.api",
            "/v3",
            home,
            {"OS_KEYSTONE_CONFIG_FILES": str(home / "keystone.conf")},
        )
        self.glance = Service(
            "glance",
            "glance.wsgi.api",
            "/",
            home,
            {
                "OS_GLANCE_CONFIG_DIR": str(home),
                "OS_GLANCE_CONFIG_FILES": "glance-api.conf",
            },
        )
        self.placement = Service(
            "placement",
            "placement.wsgi.api",
            "/",
            home,
            {"OS_PLACEMENT_CONFIG_DIR": str(home)},
        )
        self._auth_url = f"{self.keystone.url}/v3"
        self._admin: Adapter | None = None
        #: The ids of the projects, by their names.
        self.projects: dict[str, str] = {}

    # -- lifecycle ------------------------------------------------------------

    def start(self) -> None:
        """Configure all of them; start Keystone and Glance."""
        self._configure()
        keystone = ("--config-file", str(self.home / "keystone.conf"))
        # The keys belong to the current user: only root may set another owner.
        owner = (
            *("--keystone-user", pwd.getpwuid(os.getuid()).pw_name),
            *("--keystone-group", grp.getgrgid(os.getgid()).gr_name),
        )
        self._run("keystone-manage", *keystone, "db_sync")
        self._run("keystone-manage", *keystone, "fernet_setup", *owner)
        self._run("keystone-manage", *keystone, "credential_setup", *owner)
        self._run(
            "keystone-manage", *keystone, "bootstrap",
            "--bootstrap-password", PASSWORD,
            "--bootstrap-region-id", REGION,
            "--bootstrap-public-url", self._auth_url,
            "--bootstrap-internal-url", self._auth_url,
        )  # fmt: skip
        glance = ("--config-file", str(self.home / "glance-api.conf"))
        self._run("glance-manage", *glance, "db_sync")
        self.keystone.start()
        self._register()
        self.glance.start()

    def stop(self) -> None:
        """End them."""
        self.placement.kill()
        self.glance.kill()
        self.keystone.kill()

    def logs(self) -> str:
        """Return the ends of their logs."""
        return "\n".join(
            f"-- {service.name} --\n{service.told()}"
            for service in (self.keystone, self.glance, self.placement)
        )

    # -- users --------------------------------------------------------------------

    def login(self, user: str, project: str) -> session.Session:
        """Return a session of a user."""
        return session.Session(
            v3.Password(
                auth_url=self._auth_url,
                username=user,
                password=PASSWORD,
                project_name=project,
                user_domain_id="default",
                project_domain_id="default",
            )
        )

    def images(self, user: str, project: str) -> Adapter:
        """Return Glance's adapter for a user."""
        return Adapter(
            self.login(user, project), service_type="image", interface="public"
        )

    def options(self, **options: object) -> Path:
        """Write a file with the library's configuration for the user ``os_acc``.

        :param options: of [os_acc_glance], which add to those and override them.
        """
        return self.file_of(
            os_acc_bitstreams={"allowed_projects": self.projects["service"]},
            os_acc_glance={**self.credentials("os_acc"), **options},
        )

    def file_of(self, **sections: Mapping[str, object]) -> Path:
        """Write a configuration file with these sections."""
        path = self.home / f"os-acc-{uuid.uuid4()}.conf"
        lines = (
            line
            for section, settings in sections.items()
            for line in (f"[{section}]", *(f"{k} = {v}" for k, v in settings.items()))
        )
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def credentials(self, user: str) -> dict[str, object]:
        """Return the authentication options of a service's user."""
        return {
            "auth_type": "password",
            "auth_url": self._auth_url,
            "username": user,
            "password": PASSWORD,
            "project_name": "service",
            "user_domain_id": "default",
            "project_domain_id": "default",
            "region_name": REGION,
        }

    def conf(self, **options: object) -> cfg.ConfigOpts:
        """Return the library's configuration, read from such a file."""
        return read(self.options(**options))

    def revoke(self, token: str) -> None:
        """Revoke a token."""
        assert self._admin is not None
        self._admin.delete("/v3/auth/tokens", headers={"X-Subject-Token": token})

    def is_good(self, token: str) -> bool:
        """Return whether a token is valid."""
        assert self._admin is not None
        answer = self._admin.get(
            "/v3/auth/tokens", headers={"X-Subject-Token": token}, raise_exc=False
        )
        return bool(answer.status_code == 200)

    # -- images ---------------------------------------------------------------

    def upload(
        self,
        data: bytes | None,
        *,
        name: str = "image",
        project: str = "service",
        visibility: str = "private",
        **properties: object,
    ) -> str:
        """Create an image as the administrator.

        :param data: None for an image that has none yet.
        :returns: its id.
        """
        http = self.images("admin", project)
        about = {
            "name": name,
            "visibility": visibility,
            "disk_format": "raw",
            "container_format": "bare",
            **properties,
        }
        image_id: str = http.post("/v2/images", json=about).json()["id"]
        if data is not None:
            http.put(
                f"/v2/images/{image_id}/file",
                data=data,
                headers={"Content-Type": "application/octet-stream"},
            )
        return image_id

    def delete(self, image_id: str) -> None:
        """Delete an image."""
        self.images("admin", "service").delete(f"/v2/images/{image_id}")

    def file(self, image_id: str) -> Path:
        """Return the path of an image's data in Glance's store."""
        return self.store / image_id

    def downloads(self, image_id: str) -> list[str]:
        """Return the requests for an image's data: "range status" of each."""
        begin = f"GET /v2/images/{image_id}/file "
        return [
            line.removeprefix(begin)
            for line in self.glance.requests()
            if line.startswith(begin)
        ]

    # -- configuration -------------------------------------------------------------

    def _configure(self) -> None:
        for name in ("fernet", "credential", "store", "tasks", "staging"):
            (self.home / name).mkdir()
        paste = Path(sysconfig.get_path("data")) / "etc/glance/glance-api-paste.ini"
        (self.home / "keystone.conf").write_text(
            f"""
[DEFAULT]
log_file = {self.keystone.log}
[cache]
enabled = false
[database]
connection = sqlite:///{self.home}/keystone.sqlite
[fernet_tokens]
key_repository = {self.home}/fernet
[credential]
key_repository = {self.home}/credential
# Half of the lane's time would go into the hashes of its own password.
[identity]
password_hash_rounds = 4
"""
        )
        (self.home / "glance-api.conf").write_text(
            f"""
[DEFAULT]
log_file = {self.glance.log}
enabled_backends = fs:file
api_limit_max = {PAGE}
limit_param_default = {PAGE}
[database]
connection = sqlite:///{self.home}/glance.sqlite
[glance_store]
default_backend = fs
[fs]
filesystem_store_datadir = {self.store}
[os_glance_tasks_store]
filesystem_store_datadir = {self.home}/tasks
[os_glance_staging_store]
filesystem_store_datadir = {self.home}/staging
[paste_deploy]
flavor = keystone
config_file = {paste}
{self._lets_in("glance")}"""
        )
        # SQLite lets writers wait for each other, as a real database does.
        (self.home / "placement.conf").write_text(
            f"""
[DEFAULT]
log_file = {self.placement.log}
[placement_database]
connection = sqlite:///{self.home}/placement.sqlite?timeout=60
sync_on_startup = true
{self._lets_in("placement")}"""
        )

    def _lets_in(self, user: str) -> str:
        """Return a service's options for the validation of tokens by Keystone."""
        return f"""[keystone_authtoken]
www_authenticate_uri = {self._auth_url}
auth_url = {self._auth_url}
auth_type = password
username = {user}
password = {PASSWORD}
project_name = service
user_domain_id = default
project_domain_id = default
"""

    def _register(self) -> None:
        """Create services, endpoints, projects and users."""
        admin = Adapter(
            self.login("admin", "admin"), service_type="identity", interface="public"
        )
        admin.endpoint_override = self.keystone.url
        self._admin = admin
        roles = {
            role["name"]: role["id"] for role in admin.get("/v3/roles").json()["roles"]
        }
        users = {
            user["name"]: user["id"] for user in admin.get("/v3/users").json()["users"]
        }
        self.projects = {
            name: _made(admin, "project", name=name, domain_id="default")
            for name in ("service", "partner", "tenant")
        }
        for name in ("glance", "nova", "os_acc", "placement"):
            users[name] = _made(
                admin, "user", name=name, password=PASSWORD, domain_id="default"
            )
        for project, user, role in (
            ("service", "glance", "service"),
            ("service", "nova", "service"),
            ("service", "placement", "service"),
            ("service", "os_acc", "member"),
            ("service", "admin", "admin"),
            ("partner", "admin", "admin"),
            ("tenant", "admin", "admin"),
        ):
            admin.put(
                f"/v3/projects/{self.projects[project]}/users/{users[user]}"
                f"/roles/{roles[role]}"
            )
        for kind, url in (
            ("image", self.glance.url),
            ("placement", self.placement.url),
        ):
            service = _made(admin, "service", name=kind, type=kind)
            for interface in ("public", "internal"):
                _made(
                    admin,
                    "endpoint",
                    service_id=service,
                    interface=interface,
                    region=REGION,
                    url=url,
                )

    def _run(self, *command: str) -> None:
        beside = Path(sys.executable).parent
        done = subprocess.run(
            [str(beside / command[0]), *command[1:]],
            capture_output=True,
            text=True,
            env={**os.environ, "HOME": str(self.home)},
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")


def _made(admin: Adapter, kind: str, **about: object) -> str:
    answer = admin.post(f"/v3/{kind}s", json={kind: about}).json()
    made: str = answer[kind]["id"]
    return made


def read(path: Path) -> cfg.ConfigOpts:
    """Read the options of a file."""
    conf = cfg.ConfigOpts()
    conf(["--config-file", str(path)], project="os_acc")
    return conf


def sha512(data: bytes) -> str:
    """Return the digest in Glance's form."""
    return hashlib.sha512(data).hexdigest()
