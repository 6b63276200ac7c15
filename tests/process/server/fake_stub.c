// Starts Python as Triton's stub does, and runs the program that is its argument. As the stubs of two releases do, by
// PyConfig_InitIsolatedConfig or, with PYTHON_CONFIG, PyConfig_InitPythonConfig; with DEV_MODE in a mode that no stub asks for.

#include <stdlib.h>
#include <sys/types.h>

typedef struct {
    int type;
    const char *function, *message;
    int status;
} PyStatus;

int Py_IsInitialized(void);
#ifdef PYTHON_CONFIG
#define INITIALIZE PyConfig_InitPythonConfig
#else
#define INITIALIZE PyConfig_InitIsolatedConfig
#endif
void INITIALIZE(int *);
PyStatus PyConfig_SetBytesArgv(int *, ssize_t, char *const *);
PyStatus Py_InitializeFromConfig(int *);
void PyConfig_Clear(int *);
int PyStatus_Exception(PyStatus);
int PyRun_SimpleStringFlags(const char *, void *);
int Py_FinalizeEx(void);

int main(int argc, char **argv)
{
    static int config[1024];
    if (argc != 2)
        return 3;
    if (Py_IsInitialized())
        return 4;
    INITIALIZE(config);
#ifdef DEV_MODE
    config[3] = 1;
#endif
    config[4] = 1;
    if (PyStatus_Exception(PyConfig_SetBytesArgv(config, 0, NULL)) || PyStatus_Exception(Py_InitializeFromConfig(config)))
        return 5;
    PyConfig_Clear(config);
    if (!Py_IsInitialized())
        return 6;
    PyRun_SimpleStringFlags("import sys; sys.path.insert(0, '')", NULL);
    int status = PyRun_SimpleStringFlags(argv[1], NULL) ? 7 : 0;
    return Py_FinalizeEx() ? 8 : status;
}
