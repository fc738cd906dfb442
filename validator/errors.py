"""Errors of the execution of programs, in addition to `raptor.common.errors`."""

from dataclasses import dataclass

from raptor.common.errors import RaptorError, UserError


class ProgramError(UserError):
    """An instruction does something that is not defined. Exit status 2."""

    def __init__(self, core: int, pc: int, instruction: str, reason: str) -> None:
        self.core, self.pc, self.instruction, self.reason = core, pc, instruction, reason
        super().__init__(f"core {core}, instruction {pc} ({instruction}): {reason}")


class IdError(ProgramError):
    """A row number that `sld` reads selects no row of its table. Exit status 2."""


@dataclass(frozen=True, slots=True)
class BlockedCore:
    """A core that is blocked permanently: its position, and the state of the core that it waits for."""

    core: int
    pc: int
    instruction: str
    waits_for: str

    def __str__(self) -> str:
        return f"core {self.core} at {self.pc} ({self.instruction}) waits for {self.waits_for}"


class DeadlockError(RaptorError):
    """No core can continue, and not all have finished. Exit status 3."""

    exit_status = 3

    def __init__(self, blocked: tuple[BlockedCore, ...]) -> None:
        self.blocked = blocked
        super().__init__("\n".join(["deadlock:", *(f"  {core}" for core in blocked)]))
