# SPDX-License-Identifier: Apache-2.0

"""The behaviour scenarios on the simulated kernel."""

import pytest

pytest.register_assert_rewrite("tests.behaviour")

from tests.behaviour.fake_host import FakeHost  # noqa: E402
from tests.behaviour.scenarios import ALL  # noqa: E402
from tests.run_figures import counts  # noqa: E402

counted = counts("behaviour scenarios on the fake kernel")


# privsep's reader thread fails with an error when its helper is killed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("scenario", ALL, ids=lambda each: each.__name__)
@pytest.mark.parametrize(
    ("cdev", "groups"),
    [
        pytest.param(False, True, id="groups"),
        pytest.param(True, True, id="both"),
        pytest.param(True, False, id="iommufd"),
    ],
)
def test_on_the_fake_kernel(scenario, tmp_path, cdev, groups):
    with FakeHost(tmp_path, cdev=cdev, groups=groups) as host:
        scenario(host)
