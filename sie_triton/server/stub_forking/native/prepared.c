// Preloaded into Triton's stub, this library turns the stub into a fork server. Python and the modules that stages
// import are loaded before the stub's `main`, which runs in each forked process. When `main` starts Python, it finds
// Python running.

#define _GNU_SOURCE
#include "shared.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int Main(int, char **, char **);
typedef void Hook(void);

#define NEXT(name) dlsym(RTLD_NEXT, name)

// The part of Python's headers that is needed. These declarations have not changed since Python 3.8.
typedef struct PyObject PyObject;
typedef struct {
    int type;
    const char *function, *message;
    int status;
} PyStatus;
typedef struct {
    int kind, isolated, use_environment, dev_mode, install_signal_handlers;
} ConfigHead;
typedef union {
    ConfigHead head;
    char room[4096];
    void *aligned;
} Config;

enum { PYTHON_CONFIG = 2, ISOLATED_CONFIG = 3, MAX_ARGUMENTS = 64 };

#pragma weak PyConfig_InitIsolatedConfig
#pragma weak PyConfig_InitPythonConfig
#pragma weak PyConfig_SetBytesArgv
#pragma weak PyConfig_Clear
#pragma weak PyStatus_Exception
#pragma weak PyStatus_Ok
#pragma weak PyRun_SimpleStringFlags
#pragma weak PyImport_ImportModule
#pragma weak PyObject_CallMethod
#pragma weak PyBytes_AsString
#pragma weak PyBytes_Size
#pragma weak PyErr_Print
#pragma weak Py_DecRef
void PyConfig_InitIsolatedConfig(Config *);
void PyConfig_InitPythonConfig(Config *);
PyStatus PyConfig_SetBytesArgv(Config *, ssize_t, char *const *);
void PyConfig_Clear(Config *);
int PyStatus_Exception(PyStatus);
PyStatus PyStatus_Ok(void);
int PyRun_SimpleStringFlags(const char *, void *);
PyObject *PyImport_ImportModule(const char *);
PyObject *PyObject_CallMethod(PyObject *, const char *, const char *, ...);
char *PyBytes_AsString(PyObject *);
ssize_t PyBytes_Size(PyObject *);
void PyErr_Print(void);
void Py_DecRef(PyObject *);

static Main *stub_main;
static ConfigHead prepared;
static bool is_handed_over = true;  // false from the fork until the stub's `main` initialises Python
static pid_t fork_server, tritonserver;

// Ends the process. The fork server's status UNSUITED prevents its restart; with a forked process's status DECLINED,
// its stand-in becomes the stub.
static void give_up(const char *why)
{
    fprintf(stderr, "stubs are not forked: %s\n", why);
    _exit(getpid() == fork_server ? UNSUITED : DECLINED);
}

// --- functions that replace the system's and Python's in the stub

pid_t getppid(void)
{
    return tritonserver ? tritonserver : (pid_t)syscall(SYS_getppid);
}

static bool is_the_stubs(const void *code)
{
    Dl_info here, stub;
    return dladdr(code, &here) && dladdr((void *)stub_main, &stub) && here.dli_fbase == stub.dli_fbase;
}

int Py_IsInitialized(void)
{
    int (*original)(void) = NEXT("Py_IsInitialized");
    return is_handed_over || !is_the_stubs(__builtin_return_address(0)) ? original() : 0;
}

PyStatus Py_InitializeFromConfig(const Config *config)
{
    PyStatus (*original)(const Config *) = NEXT("Py_InitializeFromConfig");
    if (is_handed_over)
        return original(config);
    is_handed_over = true;
    if (memcmp(&config->head, &prepared, sizeof prepared))
        give_up("this stub needs another Python configuration than the prepared one");
    return PyStatus_Ok();
}

// --- the fork server

// Callback of dl_iterate_phdr, which ends at the first object, the program: 1 if its dynamic strings contain `name`,
// else -1.
static int find(struct dl_phdr_info *program, size_t size, void *name)
{
    (void)size;
    const ElfW(Phdr) *header = program->dlpi_phdr, *end = header + program->dlpi_phnum;
    while (header < end && header->p_type != PT_DYNAMIC)
        header++;
    const char *names = NULL;
    size_t length = 0;
    if (header < end)
        for (const ElfW(Dyn) *entry = (void *)(program->dlpi_addr + header->p_vaddr); entry->d_tag; entry++) {
            if (entry->d_tag == DT_STRTAB)
                names = (const char *)entry->d_un.d_ptr;
            if (entry->d_tag == DT_STRSZ)
                length = entry->d_un.d_val;
        }
    return names && memmem(names, length, name, strlen(name) + 1) ? 1 : -1;
}

static bool is_linked_by(char *name)
{
    return dl_iterate_phdr(find, name) > 0;
}

static void check(PyStatus status)
{
    if (PyStatus_Exception(status))
        give_up(status.message ? status.message : "Python does not start");
}

// Starts Python as the stub does, in the one of two ways that it is linked for.
static void start_python(void)
{
    static Config config;
    if (!PyStatus_Ok || !is_linked_by("Py_InitializeFromConfig"))
        give_up("the stub starts Python in an unknown way");
    bool is_isolated = is_linked_by("PyConfig_InitIsolatedConfig");
    (is_isolated ? PyConfig_InitIsolatedConfig : PyConfig_InitPythonConfig)(&config);
    const ConfigHead usual = config.head;
    if (usual.kind != (is_isolated ? ISOLATED_CONFIG : PYTHON_CONFIG) || usual.isolated != is_isolated ||
        usual.use_environment == is_isolated || usual.install_signal_handlers == is_isolated)
        give_up("the layout of this Python's configuration is unknown");
    config.head.install_signal_handlers = 1;
    check(PyConfig_SetBytesArgv(&config, 0, NULL));
    prepared = config.head;
    check(Py_InitializeFromConfig(&config));
    PyConfig_Clear(&config);
}

// Serves fork requests. Returns only in each forked process, with the pid and the arguments that its stand-in sent: see
// server/stub_forking/fork_server.py.
static PyObject *forked(const char *directory)
{
    // As in a stub, the working directory, where the launcher has put this package, comes first.
    PyRun_SimpleStringFlags("import sys; sys.path.insert(0, '')", NULL);
    PyObject *module = PyImport_ImportModule("sie_triton.server.stub_forking.fork_server");
    PyObject *given = module ? PyObject_CallMethod(module, "serve", "s", directory) : NULL;
    if (!given) {
        PyErr_Print();
        give_up("Python's part failed");
    }
    Py_DecRef(module);
    return given;
}

static int fork_server_main(int argc, char **argv, char **environment)
{
    (void)environment;
    fork_server = getpid();
    if (argc != 2)
        give_up("no directory was given");
    // The stub's file may be executable but not readable, which hides its processes from their own user.
    prctl(PR_SET_DUMPABLE, 1);
    start_python();
    PyObject *given = forked(argv[1]);
    char *text = PyBytes_AsString(given), *end = text + PyBytes_Size(given);
    tritonserver = atoi(text);
    static char *arguments[MAX_ARGUMENTS];
    int count = 0;
    for (text += strlen(text) + 1; text < end && count < MAX_ARGUMENTS - 1; text += strlen(text) + 1)
        arguments[count++] = text;
    is_handed_over = false;
    return stub_main(count, arguments, environ);
}

int __libc_start_main(Main *main, int argc, char **argv, Hook *init, Hook *fini, Hook *end, void *stack)
{
    int (*original)(Main *, int, char **, Hook *, Hook *, Hook *, void *) = NEXT("__libc_start_main");
    stub_main = main;
    return original(fork_server_main, argc, argv, init, fini, end, stack);
}
