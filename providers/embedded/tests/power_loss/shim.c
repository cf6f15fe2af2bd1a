/* Records the changes of a process to one directory in order, so that a test can rebuild the directory as a
 * power loss would have left it. It is preloaded into a child of the power-loss test. tests/it/power_loss.rs
 * reads its log.
 *
 * A record: kind u8 | inode u64 | number u64 | length u32, path | length u32, second path | length u32, data,
 * in the machine's byte order. One lock is held around each call and its record, so the log has the true order.
 * Only syncs run without it, between two records.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *directory;
static int log_fd = -1;

/* The number of acknowledgements, and that number at the last write to a journal segment. */
static uint64_t acknowledged, acknowledged_at_write;
static pthread_cond_t spoke = PTHREAD_COND_INITIALIZER;

/* The longest hold of a sync. The bound is needed because no caller may wait for its data. */
#define HELD_NS_MAX 100000000L
static int holds_syncs;

__attribute__((constructor)) static void begin(void) {
    directory = getenv("POWER_LOSS_DIRECTORY");
    const char *log = getenv("POWER_LOSS_LOG");
    holds_syncs = getenv("POWER_LOSS_HOLDS_SYNCS") != NULL;
    if (directory && log) log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
}

static int is_ours(const char *path) {
    return log_fd >= 0 && path && strncmp(path, directory, strlen(directory)) == 0;
}

/* The path of fd if it lies in the directory. */
static int path_of(int fd, char *path) {
    if (log_fd < 0) return 0;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_ours(path);
}

static uint64_t inode_of(int fd) {
    struct stat found;
    return fstat(fd, &found) == 0 ? found.st_ino : 0;
}

static void all(const void *data, size_t length) {
    const char *at = data;
    while (length > 0) {
        ssize_t written = syscall(SYS_write, log_fd, at, length);
        if (written <= 0) abort();
        at += written;
        length -= (size_t)written;
    }
}

static void record(char kind, uint64_t inode, uint64_t number, const char *path, const char *second,
                   const void *data, size_t length) {
    uint32_t lengths[3] = {path ? strlen(path) : 0, second ? strlen(second) : 0, length};
    all(&kind, 1);
    all(&inode, 8);
    all(&number, 8);
    all(&lengths[0], 4);
    if (path) all(path, lengths[0]);
    all(&lengths[1], 4);
    if (second) all(second, lengths[1]);
    all(&lengths[2], 4);
    if (data) all(data, length);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int opened(int fd, int existed, int flags, const char *path) {
    if (fd >= 0 && (flags & O_CREAT) && !existed) record('C', inode_of(fd), 0, path, NULL, NULL, 0);
    return fd;
}

#define OPEN(name)                                                                                          \
    int name(const char *path, int flags, ...) {                                                            \
        va_list arguments;                                                                                  \
        va_start(arguments, flags);                                                                         \
        mode_t mode = (flags & O_CREAT) ? va_arg(arguments, mode_t) : 0;                                    \
        va_end(arguments);                                                                                  \
        int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name);     \
        if (!is_ours(path)) return real(path, flags, mode);                                                 \
        pthread_mutex_lock(&lock);                                                                          \
        int existed = syscall(SYS_faccessat, AT_FDCWD, path, F_OK) == 0;                                    \
        int fd = opened(real(path, flags, mode), existed, flags, path);                                     \
        pthread_mutex_unlock(&lock);                                                                        \
        return fd;                                                                                          \
    }
OPEN(open)
OPEN(open64)

#define PWRITE(name, offset_type)                                                                           \
    ssize_t name(int fd, const void *data, size_t length, offset_type offset) {                             \
        ssize_t (*real)(int, const void *, size_t, offset_type) =                                           \
            (ssize_t (*)(int, const void *, size_t, offset_type))dlsym(RTLD_NEXT, #name);                   \
        char path[PATH_MAX];                                                                                \
        if (!path_of(fd, path)) return real(fd, data, length, offset);                                      \
        pthread_mutex_lock(&lock);                                                                          \
        ssize_t written = real(fd, data, length, offset);                                                   \
        if (written > 0) record('W', inode_of(fd), (uint64_t)offset, NULL, NULL, data, (size_t)written);    \
        if (strstr(path, "/journal/")) acknowledged_at_write = acknowledged;                                \
        pthread_mutex_unlock(&lock);                                                                        \
        return written;                                                                                     \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

/* Acknowledgements go to standard output, and the log must hold them in the same order. An object is written at
 * the offset of its own file descriptor. */
ssize_t write(int fd, const void *data, size_t length) {
    char path[PATH_MAX];
    if (log_fd < 0 || (fd != STDOUT_FILENO && !path_of(fd, path))) return syscall(SYS_write, fd, data, length);
    pthread_mutex_lock(&lock);
    ssize_t written;
    if (fd == STDOUT_FILENO) {
        record('A', 0, 0, NULL, NULL, data, length);
        written = syscall(SYS_write, fd, data, length);
        acknowledged += 1;
        pthread_cond_broadcast(&spoke);
    } else {
        off_t offset = lseek(fd, 0, SEEK_CUR);
        written = syscall(SYS_write, fd, data, length);
        if (written > 0) record('W', inode_of(fd), (uint64_t)offset, NULL, NULL, data, (size_t)written);
    }
    pthread_mutex_unlock(&lock);
    return written;
}

#define SIZED(name, kind, length_type)                                                                      \
    int name(int fd, length_type length) {                                                                  \
        int (*real)(int, length_type) = (int (*)(int, length_type))dlsym(RTLD_NEXT, #name);                 \
        char path[PATH_MAX];                                                                                \
        if (!path_of(fd, path)) return real(fd, length);                                                    \
        pthread_mutex_lock(&lock);                                                                          \
        int result = real(fd, length);                                                                      \
        if (result == 0) record(kind, inode_of(fd), (uint64_t)length, NULL, NULL, NULL, 0);                 \
        pthread_mutex_unlock(&lock);                                                                        \
        return result;                                                                                      \
    }
SIZED(ftruncate, 'T', off_t)
SIZED(ftruncate64, 'T', off64_t)

#define ALLOCATE(name, offset_type)                                                                         \
    int name(int fd, offset_type offset, offset_type length) {                                              \
        int (*real)(int, offset_type, offset_type) =                                                        \
            (int (*)(int, offset_type, offset_type))dlsym(RTLD_NEXT, #name);                                \
        char path[PATH_MAX];                                                                                \
        if (!path_of(fd, path)) return real(fd, offset, length);                                            \
        pthread_mutex_lock(&lock);                                                                          \
        int result = real(fd, offset, length);                                                              \
        if (result == 0) record('F', inode_of(fd), (uint64_t)(offset + length), NULL, NULL, NULL, 0);       \
        pthread_mutex_unlock(&lock);                                                                        \
        return result;                                                                                      \
    }
ALLOCATE(posix_fallocate, off_t)
ALLOCATE(posix_fallocate64, off64_t)

/* Imitates a slow disk: waits until the data to be synced is acknowledged, or until the bound. */
static void hold(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += HELD_NS_MAX;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    while (acknowledged == acknowledged_at_write) {
        if (pthread_cond_timedwait(&spoke, &lock, &until) != 0) return;
    }
}

/* A sync covers the writes before its begin. Other calls go on meanwhile, so its begin and end are recorded. */
static int synced(int fd, int (*real)(int)) {
    char path[PATH_MAX];
    struct stat found;
    if (!path_of(fd, path) || fstat(fd, &found) != 0) return real(fd);
    int is_directory = S_ISDIR(found.st_mode);
    uint64_t thread = (uint64_t)syscall(SYS_gettid);
    pthread_mutex_lock(&lock);
    record(is_directory ? 'd' : 's', found.st_ino, thread, path, NULL, NULL, 0);
    if (holds_syncs && !is_directory && strstr(path, "/journal/")) hold();
    pthread_mutex_unlock(&lock);
    int result = real(fd);
    if (result != 0) return result;
    pthread_mutex_lock(&lock);
    record(is_directory ? 'D' : 'S', found.st_ino, thread, path, NULL, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int fsync(int fd) { return synced(fd, REAL(fsync)); }
int fdatasync(int fd) { return synced(fd, REAL(fdatasync)); }

int rename(const char *from, const char *to) {
    if (!is_ours(from)) return REAL(rename)(from, to);
    pthread_mutex_lock(&lock);
    int result = REAL(rename)(from, to);
    if (result == 0) record('R', 0, 0, from, to, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int unlink(const char *path) {
    if (!is_ours(path)) return REAL(unlink)(path);
    pthread_mutex_lock(&lock);
    int result = REAL(unlink)(path);
    if (result == 0) record('U', 0, 0, path, NULL, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
