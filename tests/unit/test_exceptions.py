# SPDX-License-Identifier: Apache-2.0

"""Every error states the failure and the remedy."""

import copy
import pickle

import pytest

from os_acc import exception
from os_acc.exception import ErrorReason, Fault, ObjectKind, OsAccError


def all_of(kind: type[OsAccError]) -> list[type[OsAccError]]:
    return [kind, *(each for sub in kind.__subclasses__() for each in all_of(sub))]


def required(kind: type[OsAccError]) -> dict[str, object]:
    """Return the required arguments of a class."""
    if issubclass(kind, exception.DevicesUnreleased):
        return {"released": (), "unreleased": ()}
    if kind is exception.NotFound:
        return {"kind": exception.ObjectKind.LEASE}
    if issubclass(kind, exception.ServiceError):
        return {"service": exception.ServiceType.PLACEMENT}
    return {}


def make(kind: type[OsAccError], **arguments: object) -> OsAccError:
    return kind("what happened", **required(kind), **arguments)


EVERY = [each for each in all_of(OsAccError) if each.__module__ == exception.__name__]


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_an_error_says_what_happened_and_then_what_to_do(kind):
    error = make(kind)
    assert error.message == "what happened"
    hint = (error.reason.hint if error.reason else "") or kind.default_hint
    assert str(error) == (f"what happened ({hint})" if hint else "what happened")
    assert kind.__doc__
    assert kind.__doc__ != kind.__base__.__doc__
    assert not kind.default_hint.startswith("(")
    assert not kind.default_hint.endswith(".")
    hinted = make(kind, hint="do this")
    assert str(hinted) == "what happened (do this)"


def reasons_of(kind: type[OsAccError]) -> list[ErrorReason]:
    own = kind.reason
    return [] if own is None else list(type(own))


WITH_REASONS = [(kind, reason) for kind in EVERY for reason in reasons_of(kind)]


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_an_error_says_whose_fault_it_is_and_where_to_retry(kind):
    for error in (kind, make(kind)):
        assert isinstance(error.fault, Fault)
        assert isinstance(error.retryable, bool)
        assert isinstance(error.elsewhere, bool)
    if error.fault is Fault.SERVICE:
        assert not error.elsewhere


@pytest.mark.parametrize(("kind", "reason"), WITH_REASONS)
def test_a_reason_decides_on_hint_and_retry(kind, reason):
    error = make(kind, reason=reason)
    assert error.reason is reason
    assert error.hint == reason.hint or kind.default_hint
    assert error.retryable == (kind.retryable or reason.retryable)
    assert make(kind, reason=reason, hint="do this").hint == "do this"


@pytest.mark.parametrize("reason", ErrorReason.__subclasses__())
def test_each_list_of_reasons_is_of_one_class(reason):
    of = [kind for kind in EVERY if isinstance(kind.reason, reason)]
    assert len(of) == (reason is not ObjectKind)
    for each in reason:
        assert each.value
        assert not each.hint.endswith(".")


def test_what_may_be_retried():
    """A reason decides; errors without a reason go by their class."""
    assert {each for _kind, each in WITH_REASONS if each.retryable} == {
        exception.StateReason.BUSY,
        exception.PluginReason.BUSY,
        exception.ChangeReason.UNSETTLED,
        exception.RegionReason.IN_USE,
        exception.RegionReason.MISMATCH,
        exception.StepReason.NO_CAPACITY,
        exception.OutageReason.NO_ANSWER,
        exception.OutageReason.LOCAL_SOURCE,
        exception.RefusalReason.CONFLICT,
    }
    assert {kind for kind in EVERY if kind.retryable} == {
        exception.InitializeTimeout,
        exception.LockTimeout,
        exception.NoDeviceAvailable,
        exception.DeviceInUse,
        exception.DeviceStuck,
        exception.HelperLost,
    }


def test_whose_fault_it_is():
    own = {kind for kind in EVERY if "fault" in vars(kind)}
    assert {kind for kind in own if kind.fault is Fault.REQUEST} == {
        exception.InvalidInput,
        exception.Conflict,
        exception.BitstreamError,
    }
    assert {kind for kind in own if kind.fault is Fault.SERVICE} == {
        exception.ServiceError
    }
    assert {kind for kind in own if kind.fault is Fault.INTERNAL} == {
        exception.PluginFailed
    }


def test_another_host_may_serve_what_this_one_cannot():
    for kind in (
        exception.NoDeviceAvailable,
        exception.DeviceGone,
        exception.HostStepFailed,
        exception.CyborgAgentUnavailable,
        exception.InvalidConfiguration,
        exception.CacheFull,
        exception.RegionUnusable,
        exception.ProviderNotFound,
        exception.FitUndecided,
    ):
        assert make(kind).elsewhere, kind
    for kind in (
        exception.InvalidInput,
        exception.InvalidAllocation,
        exception.Conflict,
        exception.DevicesUnreleased,
        exception.ImageRefused,
        exception.ImageNotFound,
        exception.ImageUnusable,
        exception.ServiceUnavailable,
        exception.ServiceRefused,
    ):
        assert not make(kind).elsewhere, kind


@pytest.mark.parametrize("kind", ObjectKind)
def test_an_object_that_is_not_there_says_what_it_is(kind):
    error = exception.NotFound("none", kind=kind)
    assert error.kind is kind
    assert error.fault is {
        ObjectKind.DEVICE: Fault.HOST,
        ObjectKind.NODE: Fault.SERVICE,
    }.get(kind, Fault.REQUEST)
    assert error.elsewhere == (kind in (ObjectKind.DEVICE, ObjectKind.PROVIDER))
    assert error.retryable == (kind is ObjectKind.NODE)


def test_a_source_on_this_host_is_no_service():
    error = exception.ServiceUnavailable(
        "unreadable",
        service=exception.ServiceType.IMAGE,
        reason=exception.OutageReason.LOCAL_SOURCE,
    )
    assert (error.fault, error.elsewhere) == (Fault.HOST, True)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_an_error_can_be_copied_and_sent(kind):
    error = make(kind, hint="do this")
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is kind
        assert (other.args, vars(other)) == (error.args, vars(error))


def test_what_a_caller_passed_wrong_is_a_value_error():
    for kind in all_of(exception.InvalidInput):
        assert issubclass(kind, ValueError)
        assert not kind.retryable


def test_that_the_library_cannot_serve_has_the_specifications_name():
    for kind in (
        exception.NotInitialized,
        exception.HelperUnavailable,
        exception.StateUnavailable,
        exception.InitializeTimeout,
    ):
        assert issubclass(kind, exception.CyborgAgentUnavailable)


def test_devices_that_are_not_released_are_told_with_those_that_are():
    why = exception.DeviceInUse("held", holders=[(1, "qemu")])
    error = exception.DevicesUnreleased(
        "one is left", released=["a"], unreleased=[("b", why)]
    )
    assert error.released == ("a",)
    assert error.unreleased == (("b", why),)
    assert why.holders == ((1, "qemu"),)


def test_what_the_host_refused_carries_address_and_number():
    error = exception.HostStepFailed("no", address="0000:3b:00.0", errno=5)
    assert (error.address, error.errno) == ("0000:3b:00.0", 5)
    assert (exception.HelperLost("gone").address, exception.HelperLost("x").errno) == (
        "",
        0,
    )


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_an_error_is_short_however_much_it_is_given(kind):
    text = "x" * 390_000
    error = kind(text, hint=text, **required(kind))
    assert len(str(error)) < 2_000
    assert error.message.startswith("xxxx")
    assert error.message.endswith("... (388528 more characters)")
    assert error.hint.endswith("... (389548 more characters)")


def test_a_text_that_cannot_be_written_is_escaped():
    """Errors of libraries quote text from servers."""
    error = exception.HostError("half \ud800", hint="of \udfff")
    assert str(error) == "half \\ud800 (of \\udfff)"


def test_a_text_that_fits_is_not_cut():
    message, hint = "m" * exception.LONGEST_MESSAGE, "h" * exception.LONGEST_HINT
    error = exception.HostError(message, hint=hint)
    assert (error.message, error.hint) == (message, hint)


def test_a_message_is_one_line_that_no_terminal_obeys():
    """The name of a process may have any characters."""
    error = OsAccError("held by q\n\x1b[2J\x9b", hint="end q\r")
    assert error.message == "held by q\\n\\x1b[2J\\x9b"
    assert error.hint == "end q\\r"
