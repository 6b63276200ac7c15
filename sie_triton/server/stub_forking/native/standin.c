// Triton starts this program as a stub of its Python backend. It asks the stub fork server for the real stub, and stands
// in for it.
//
// Triton waits for this process to end, or kills it. The kernel then ends the stub: the stub holds the other end of a
// socket pair, the leash, and gets SIGKILL when this end closes. If no fork server responds, or if the forked process
// cannot be this stub, this process becomes the stub itself.

#define _GNU_SOURCE
#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    ANSWER_S = 60,          // timeout of the fork server, in seconds; Triton's for a stub is longer
    NEWS_S = 1,             // timeout for the stub's exit status, in seconds
    MAX_ARGUMENTS = 65536,  // capacity of a pipe, in bytes
    NUM_SENT = 6,
};

static int pidfd_of(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

static bool is_of_this_user(int fork_server)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(fork_server, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

static void allow(int fork_server, int seconds)
{
    struct timeval limit = {.tv_sec = seconds};
    setsockopt(fork_server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fork_server, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

// Returns a connection to the fork server that listens in `directory`; -1 if there is none.
static int connected(const char *directory)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fork_server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int at = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    // A socket's address cannot hold a long path.
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/fork_server.sock", at);
    allow(fork_server, ANSWER_S);
    bool is_there = connect(fork_server, (struct sockaddr *)&address, sizeof address) == 0 && is_of_this_user(fork_server);
    close(at);
    if (!is_there) {
        close(fork_server);
        return -1;
    }
    return fork_server;
}

// Returns the read end of a pipe with the pid of tritonserver and the arguments, each followed by NUL; -1 if they do not
// fit.
static int written(pid_t tritonserver, int argc, char **argv)
{
    static char text[MAX_ARGUMENTS];
    size_t length = (size_t)snprintf(text, sizeof text, "%d", tritonserver) + 1;
    for (int i = 0; i < argc; i++) {
        size_t size = strlen(argv[i]) + 1;
        if (size > sizeof text - length)
            return -1;
        memcpy(text + length, argv[i], size);
        length += size;
    }
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return -1;
    bool is_whole = write(ends[1], text, length) == (ssize_t)length;
    close(ends[1]);
    return is_whole ? ends[0] : -1;
}

static bool send_all(int fork_server, const int descriptors[NUM_SENT])
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(NUM_SENT * sizeof(int))];
    } control = {0};
    struct iovec text = {"fork", 4};
    struct msghdr message = {
        .msg_iov = &text, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.room};
    struct cmsghdr *sent = CMSG_FIRSTHDR(&message);
    sent->cmsg_level = SOL_SOCKET;
    sent->cmsg_type = SCM_RIGHTS;
    sent->cmsg_len = CMSG_LEN(NUM_SENT * sizeof(int));
    memcpy(CMSG_DATA(sent), descriptors, NUM_SENT * sizeof(int));
    return sendmsg(fork_server, &message, MSG_NOSIGNAL) == 4;
}

// Returns a pidfd of the stub that the fork server has forked; -1 if it forked none.
static int received(int fork_server)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    char pid[16];
    struct iovec text = {pid, sizeof pid};
    struct msghdr message = {
        .msg_iov = &text, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.room};
    if (recvmsg(fork_server, &message, MSG_CMSG_CLOEXEC) <= 0)
        return -1;
    struct cmsghdr *found = CMSG_FIRSTHDR(&message);
    if (!found || found->cmsg_type != SCM_RIGHTS)
        return -1;
    int handle;
    memcpy(&handle, CMSG_DATA(found), sizeof handle);
    return dup3(handle, HANDLE, O_CLOEXEC);
}

// Returns the stub's exit status, or minus the signal that ended it; 1 if the fork server does not report it.
static int status_of(int fork_server)
{
    char text[16] = {0};
    allow(fork_server, NEWS_S);
    return recv(fork_server, text, sizeof text - 1, 0) > 0 ? atoi(text) : 1;
}

// Waits until the stub or tritonserver ends; returns the status of status_of.
static int stand_in(int fork_server, int stub, int tritonserver)
{
    struct pollfd ends[] = {{.fd = stub, .events = POLLIN}, {.fd = tritonserver, .events = POLLIN}};
    while (poll(ends, 2, -1) < 0 && errno == EINTR)
        ;
    return ends[0].revents ? status_of(fork_server) : 1;
}

static void end_as(int status)
{
    if (status < 0) {
        const struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(-status, SIG_DFL);
        raise(-status);
        status = 128 - status;
    }
    exit(status);
}

// Returns only if this process must become the stub itself.
static void be_stood_for(const char *directory, int argc, char **argv)
{
    pid_t parent = getppid();
    int fork_server = connected(directory), tritonserver = pidfd_of(parent), leash[2];
    if (fork_server < 0 || tritonserver < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, leash))
        return;
    int cwd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC), arguments = written(parent, argc, argv);
    const int sent[NUM_SENT] = {arguments, 0, 1, 2, cwd, leash[1]};
    int stub = send_all(fork_server, sent) ? received(fork_server) : -1;
    close(leash[1]);
    close(arguments);
    close(cwd);
    // The stub waits for this byte, so that it does nothing before it is on the leash.
    if (stub < 0 || send(leash[0], "", 1, MSG_NOSIGNAL) != 1)
        return;
    int status = stand_in(fork_server, stub, tritonserver);
    if (status != DECLINED)
        end_as(status);
}

int main(int argc, char **argv)
{
    char directory[PATH_MAX], stub[PATH_MAX + sizeof REAL_STUB];
    const char *name = strrchr(argv[0], '/');
    if (!name || name - argv[0] >= PATH_MAX)
        return 1;
    snprintf(directory, sizeof directory, "%.*s", (int)(name - argv[0]), argv[0]);
    snprintf(stub, sizeof stub, "%s/" REAL_STUB, directory);
    // Ignored, as in a stub.
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    be_stood_for(directory, argc, argv);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    execv(stub, argv);
    perror(stub);
    return 1;
}
