from tests.workdirs import make_workdir

__all__ = ["make_workdir"]
