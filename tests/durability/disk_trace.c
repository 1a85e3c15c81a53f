/* Preloaded into a process, this records everything it does to the files below one directory, in order.
 *
 * Each record is: kind (1 byte), length of the path (u16), the path, offset (i64), length of the data (u64), data.
 * A sync is recorded twice, when it begins and when it has returned: only writes that were recorded before its
 * beginning are safe once it returned. Everything else happens under one lock together with its record, so that the
 * order of records is the order of effects. Memory maps are not seen: SQLite uses one for the index of its log only,
 * which it rebuilds after a crash.
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
#include <sys/types.h>
#include <unistd.h>

#define MOST_FILES 4096
#define REAL(name) ((__typeof__(&name))real(#name))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *paths[MOST_FILES];
static int trace = -1;
static const char *root;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

__attribute__((constructor)) static void begin(void) {
    root = getenv("DISK_TRACE_ROOT");
    const char *to = getenv("DISK_TRACE");
    if (root && to) trace = REAL(open)(to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static void put(const void *data, size_t size) {
    const char *at = data;
    while (size) {
        ssize_t done = REAL(write)(trace, at, size);
        if (done < 0) abort();
        at += done;
        size -= (size_t)done;
    }
}

static void record(char kind, const char *path, int64_t offset, const void *data, uint64_t size) {
    uint16_t length = (uint16_t)strlen(path);
    char head[1 + 2 + PATH_MAX + 16];
    size_t n = 0;
    head[n++] = kind;
    memcpy(head + n, &length, 2), n += 2;
    memcpy(head + n, path, length), n += length;
    memcpy(head + n, &offset, 8), n += 8;
    memcpy(head + n, &size, 8), n += 8;
    put(head, n);
    put(data, size);
}

static int below_root(const char *path) {
    size_t n = root ? strlen(root) : 0;
    return trace >= 0 && path && n && !strncmp(path, root, n) && (path[n] == '/' || !path[n]);
}

static const char *path_of(int fd) { return trace >= 0 && fd >= 0 && fd < MOST_FILES ? paths[fd] : NULL; }

static int opened(const char *path, int flags, mode_t mode) {
    if (!below_root(path)) return REAL(open)(path, flags, mode);
    pthread_mutex_lock(&lock);
    int existed = access(path, F_OK) == 0;
    int fd = REAL(open)(path, flags, mode);
    if (fd >= 0 && fd < MOST_FILES) {
        free(paths[fd]);
        paths[fd] = strdup(path);
        if (!existed) record('C', path, 0, NULL, 0);
        else if (flags & O_TRUNC) record('T', path, 0, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

#define OPEN(name)                                     \
    int name(const char *path, int flags, ...) {       \
        va_list more;                                  \
        va_start(more, flags);                         \
        mode_t mode = va_arg(more, mode_t);            \
        va_end(more);                                  \
        return opened(path, flags, mode);              \
    }
OPEN(open)
OPEN(open64)

int openat64(int at, const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    return path[0] == '/' ? opened(path, flags, mode) : REAL(openat)(at, path, flags, mode);
}

int close(int fd) {
    pthread_mutex_lock(&lock);
    if (path_of(fd)) free(paths[fd]), paths[fd] = NULL;
    int result = REAL(close)(fd);
    pthread_mutex_unlock(&lock);
    return result;
}

static ssize_t written(int fd, const void *data, size_t size, off_t offset, int positioned) {
    if (!path_of(fd)) return positioned ? REAL(pwrite)(fd, data, size, offset) : REAL(write)(fd, data, size);
    pthread_mutex_lock(&lock);
    if (!positioned) offset = fcntl(fd, F_GETFL) & O_APPEND ? lseek(fd, 0, SEEK_END) : lseek(fd, 0, SEEK_CUR);
    ssize_t done = positioned ? REAL(pwrite)(fd, data, size, offset) : REAL(write)(fd, data, size);
    if (done > 0) record('W', paths[fd], offset, data, (uint64_t)done);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t write(int fd, const void *data, size_t size) { return written(fd, data, size, 0, 0); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return written(fd, data, size, at, 1); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { return written(fd, data, size, at, 1); }

static int truncated(int fd, off_t size) {
    if (!path_of(fd)) return REAL(ftruncate)(fd, size);
    pthread_mutex_lock(&lock);
    int result = REAL(ftruncate)(fd, size);
    if (!result) record('T', paths[fd], size, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int ftruncate(int fd, off_t size) { return truncated(fd, size); }
int ftruncate64(int fd, off64_t size) { return truncated(fd, size); }

static int synced(int fd, int data_only) {
    char path[PATH_MAX] = "";
    pthread_mutex_lock(&lock);
    if (path_of(fd)) {
        strncpy(path, paths[fd], sizeof path - 1);
        record('S', path, 0, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    int result = data_only ? REAL(fdatasync)(fd) : REAL(fsync)(fd);
    if (*path && !result) {
        pthread_mutex_lock(&lock);
        record('E', path, 0, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    return result;
}
int fsync(int fd) { return synced(fd, 0); }
int fdatasync(int fd) { return synced(fd, 1); }

static int renamed(const char *from, const char *to) {
    if (!below_root(from)) return REAL(rename)(from, to);
    pthread_mutex_lock(&lock);
    int result = REAL(rename)(from, to);
    if (!result) record('R', from, 0, to, strlen(to));
    pthread_mutex_unlock(&lock);
    return result;
}
int rename(const char *from, const char *to) { return renamed(from, to); }
int renameat(int a, const char *from, int b, const char *to) {
    return from[0] == '/' && to[0] == '/' ? renamed(from, to) : REAL(renameat)(a, from, b, to);
}

int unlink(const char *path) {
    if (!below_root(path)) return REAL(unlink)(path);
    pthread_mutex_lock(&lock);
    int result = REAL(unlink)(path);
    if (!result) record('U', path, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
