# SPDX-License-Identifier: Apache-2.0

"""A weigher of Nova's scheduler that spreads or packs servers with accelerators.

nova-scheduler loads it by ``[filter_scheduler] weight_classes``. The interface is
``nova.scheduler.weights.BaseHostWeigher`` of Nova 34.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nova.conf import CONF
from nova.scheduler import utils, weights
from oslo_log import log

from os_acc import conf, exception
from os_acc.nova import scheduling
from os_acc.nova.host_providers import record_of

LOG = log.getLogger(__name__)

_MULTIPLIER = "accelerator_weight_multiplier"


class AcceleratorWeigher(weights.BaseHostWeigher):  # type: ignore[misc]
    """Weigh hosts by the free units of the requested accelerators."""

    minval = 0

    def __init__(self) -> None:
        self._settings = conf.SchedulerSettings.load(CONF)

    def weight_multiplier(self, host_state: Any) -> float:
        """Return the multiplier of a host: positive spreads, negative packs."""
        multiplier: float = utils.get_weight_multiplier(
            host_state, _MULTIPLIER, CONF[conf.SCHEDULER.name][_MULTIPLIER]
        )
        return multiplier

    def weigh_objects(
        self, weighed_obj_list: Sequence[Any], weight_properties: Any
    ) -> list[float]:
        """Return the weight of each host, as :meth:`_weigh_object` does.

        :param weighed_obj_list: of ``nova.scheduler.weights.WeighedHost``.
        :param weight_properties: a ``nova.objects.RequestSpec``.
        """
        hosts = [each.obj for each in weighed_obj_list]
        server = scheduling.ServerRequest(weight_properties, self._settings)
        try:
            return [self._free_units(host, server) for host in hosts]
        except exception.OsAccError as error:
            LOG.warning("hosts are weighed without their free units: %s", error)
            # Units of some hosts must not be compared with providers of others.
            found = [server.uses(host.allocation_candidates) for host in hosts]
            return [len({use.provider for use in uses}) for uses in found]

    def _weigh_object(self, obj: Any, weight_properties: Any) -> float:
        """Return the free units of the requested resource classes on a host.

        If Placement gives no answer: the number of providers among its candidates.
        """
        (weight,) = self.weigh_objects([weights.WeighedHost(obj, 0)], weight_properties)
        return weight

    def _free_units(self, host_state: Any, server: scheduling.ServerRequest) -> float:
        uses = server.uses(host_state.allocation_candidates)
        if not uses:
            return 0
        found = server.providers(host_state, uses, self._settings.usage_lifetime)
        names = {name for use in uses for name in use.units}
        claimed = record_of(host_state).claimed
        return sum(
            max(0, state.free.get(name, 0) - claimed[uuid, name])
            for uuid, state in found.items()
            for name in names
        )
