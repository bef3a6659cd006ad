# SPDX-License-Identifier: Apache-2.0

"""Every error says what happened, and what to do about it."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.exception import OsAccError
from os_acc.objects.epoch import AcceptedEpochs


def all_of(kind: type[OsAccError]) -> list[type[OsAccError]]:
    return [kind, *(each for sub in kind.__subclasses__() for each in all_of(sub))]


def make(kind: type[OsAccError], **arguments: object) -> OsAccError:
    more = (
        {"released": (), "unreleased": ()}
        if issubclass(kind, exception.DevicesUnreleased)
        else {"address": "0000:3b:00.0", "accepted": AcceptedEpochs(7, 9)}
        if kind.__name__ == "EpochRefused"
        else {}
    )
    return kind("what happened", **more, **arguments)


EVERY = [each for each in all_of(OsAccError) if each.__module__ == exception.__name__]


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_an_error_says_what_happened_and_then_what_to_do(kind):
    error = make(kind)
    assert error.message == "what happened"
    assert str(error) == (
        f"what happened ({kind.default_hint})" if kind.default_hint else "what happened"
    )
    assert isinstance(kind.retryable, bool)
    assert kind.__doc__
    hinted = make(kind, hint="do this")
    assert str(hinted) == "what happened (do this)"


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_a_hint_never_repeats_its_brackets(kind):
    assert not kind.default_hint.startswith("(")
    assert not kind.default_hint.endswith(".")


def test_what_a_caller_passed_wrong_is_a_value_error():
    for kind in all_of(exception.InvalidInput):
        assert issubclass(kind, ValueError)
        assert not kind.retryable


def test_that_the_library_cannot_serve_has_the_specifications_name():
    for kind in (
        exception.NotInitialized,
        exception.HelperUnavailable,
        exception.StateUnavailable,
        exception.StoreFull,
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
    arguments = {"released": (), "unreleased": ()}
    more = arguments if issubclass(kind, exception.DevicesUnreleased) else {}
    error = kind(text, hint=text, **more)
    assert len(str(error)) < 2_000
    assert error.message.startswith("xxxx")
    assert error.message.endswith("... (388528 more characters)")
    assert error.hint.endswith("... (389548 more characters)")


def test_a_text_that_cannot_be_written_is_escaped():
    """Libraries quote in their errors what a server has sent."""
    error = exception.HostError("half \ud800", hint="of \udfff")
    assert str(error) == "half \\ud800 (of \\udfff)"


def test_a_text_that_fits_is_not_cut():
    message, hint = "m" * exception.LONGEST_MESSAGE, "h" * exception.LONGEST_HINT
    error = exception.HostError(message, hint=hint)
    assert (error.message, error.hint) == (message, hint)
