"""Worker environments: venvs with their own libraries, which a model file selects with `environment`.

The worker of such a model runs in the venv, with the server's sie_triton; its stages run in the server's environment.

venv      one environment, and whether it is usable; imports the standard library only, because workers import it
make      creates and removes environments
commands  `sie-triton env`
"""
