"""Worker environments: venvs with libraries of their own, which a model file names by `environment`.

The worker of such a model runs there, with the sie_triton of the server; its stages stay where they are.

venv      one environment, and whether it can be used; standard library only, as its workers import it
make      makes and removes environments
commands  `sie-triton env`
"""
