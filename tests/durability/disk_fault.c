/* Preloaded into a process, this makes its disk fail while a file says so.
 *
 * DISK_FAULT names a file; its first byte selects the fault of every file whose name ends in "-wal":
 *   'f'  the disk is full: writes fail with ENOSPC
 *   's'  the disk cannot sync: fsync and fdatasync fail with EIO
 * Anything else, or no file: no fault.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static char fault(int descriptor) {
    char link[64], path[PATH_MAX], byte = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path);
    if (length < 4 || memcmp(path + length - 4, "-wal", 4) != 0) return 0;
    const char *name = getenv("DISK_FAULT");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    if (read(file, &byte, 1) != 1) byte = 0;
    close(file);
    return byte;
}

static int fails(int descriptor, char kind, int error) {
    if (fault(descriptor) != kind) return 0;
    errno = error;
    return 1;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return fails(fd, 'f', ENOSPC) ? -1 : REAL(pwrite)(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return fails(fd, 'f', ENOSPC) ? -1 : REAL(pwrite64)(fd, data, size, at);
}

int fsync(int fd) { return fails(fd, 's', EIO) ? -1 : REAL(fsync)(fd); }

int fdatasync(int fd) { return fails(fd, 's', EIO) ? -1 : REAL(fdatasync)(fd); }
