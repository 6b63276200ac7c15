"""Signals of the servers that tests start."""

import signal


def heed_signals() -> None:
    """Let this process, and so its children, heed signals that a shell makes its background processes ignore.

    A `preexec_fn` would do the same for children alone, but runs Python between fork and exec, which crashes now and
    then where other threads use gRPC.
    """
    for signum, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(signum) == signal.SIG_IGN:
            signal.signal(signum, handler)
