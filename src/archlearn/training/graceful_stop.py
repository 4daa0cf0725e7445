"""Ctrl-C ends a run between two steps, after its checkpoint; a second one ends it at once."""

import signal
import threading
from types import FrameType, TracebackType


class Interruption:
    """Notes Ctrl-C and a polite kill while it is entered."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Interruption":
        """Take the signals over; only the main thread may."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        del number
