// Preloaded into tritonserver, this library keeps two things from other users: arguments, which every user may read in
// /proc/PID/cmdline, and the shared memory of Python stages, whose mode Boost sets to 0644, whatever the umask is.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// An argument "$SIE_HIDDEN_ARGUMENT_…" stands for the value of that variable, which only the same user may read. It is
// replaced before the program's own code runs; processes that the program starts do not get the variable.
static void __attribute__((constructor)) take_hidden_arguments(int argc, char **argv)
{
    static const char prefix[] = "$SIE_HIDDEN_ARGUMENT_";
    for (int i = 1; i < argc; i++) {
        char *value = strncmp(argv[i], prefix, sizeof prefix - 1) ? NULL : getenv(argv[i] + 1);
        if (value == NULL)
            continue;
        char *name = argv[i] + 1;
        argv[i] = strdup(value);
        unsetenv(name);
    }
}

// Shared memory that this thread has just created; -1: none. Its mode is set next.
static _Thread_local int created = -1;

int shm_open(const char *name, int flags, mode_t mode)
{
    int (*original)(const char *, int, mode_t) = dlsym(RTLD_NEXT, "shm_open");
    int memory = original(name, flags, mode & S_IRWXU);
    created = flags & O_CREAT ? memory : -1;
    return memory;
}

int fchmod(int file, mode_t mode)
{
    if (file == created)
        mode &= S_IRWXU;
    created = -1;
    return (int)syscall(SYS_fchmod, file, mode);
}
