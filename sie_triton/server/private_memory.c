// Preloaded into tritonserver, this library closes the shared memory of Python stages to other users. Boost, which the
// Python backend uses, sets its mode to 0644, whatever the umask is.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

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
