// Preloaded into a ragstone, it has one of its calls about files fail, as a disk does that is full, gone or broken.
//
//   FAIL_BELOW   only calls about files below this folder count
//   FAIL_AT      the number of the first call that fails, from 1; 0: none
//   FAIL_CALLS   how many fail
//   FAIL_ERRNO   the error
//   FAIL_COUNTED a file that gets the number of calls in the end
//   FAIL_WHEN    a file: while it is there, calls that change anything fail with the error whose number it holds. Of a full disk (28) those do
//                not that make room
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define MOST_FILES 65536

static const char *below;
static size_t below_length;
static long first, many, error;
static atomic_long calls;
// Which descriptors are of files below the folder.
static atomic_char is_below[MOST_FILES];

static long number(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

__attribute__((constructor)) static void begin(void) {
    below = getenv("FAIL_BELOW");
    below_length = below ? strlen(below) : 0;
    first = number("FAIL_AT");
    many = number("FAIL_CALLS");
    error = number("FAIL_ERRNO");
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("FAIL_COUNTED");
    if (!path) return;
    below = NULL;
    FILE *file = fopen(path, "w");
    if (!file) return;
    fprintf(file, "%ld\n", atomic_load(&calls));
    fclose(file);
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

// Whether this call is to fail.
static int fails(void) {
    long call = atomic_fetch_add(&calls, 1) + 1;
    if (first == 0 || call < first || call >= first + many) return 0;
    errno = (int)error;
    return 1;
}

// Whether a call that changes something is to fail, as the disk is now.
static int fails_to_change(int makes_room) {
    const char *when = getenv("FAIL_WHEN");
    if (!when) return fails();
    int fd = REAL(int, openat, int, const char *, int, mode_t)(AT_FDCWD, when, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return 0;
    char text[16] = {0};
    ssize_t bytes = REAL(ssize_t, read, int, void *, size_t)(fd, text, sizeof text - 1);
    REAL(int, close, int)(fd);
    int number = bytes > 0 ? atoi(text) : 0;
    if (number == 0 || (number == ENOSPC && makes_room)) return 0;
    errno = number;
    return 1;
}

static int changes(int flags) { return (flags & (O_CREAT | O_TRUNC)) || (flags & O_ACCMODE) != O_RDONLY; }

static int counts_path(const char *path) { return below && path && strncmp(path, below, below_length) == 0; }
static int counts_fd(int fd) { return below && fd >= 0 && fd < MOST_FILES && atomic_load(&is_below[fd]); }

static int opened(int fd, int counts) {
    if (fd >= 0 && fd < MOST_FILES) atomic_store(&is_below[fd], (char)counts);
    return fd;
}

#define OPEN(name)                                                        \
    int name(const char *path, int flags, ...) {                          \
        va_list more;                                                     \
        va_start(more, flags);                                            \
        mode_t mode = va_arg(more, mode_t);                               \
        va_end(more);                                                     \
        int counts = counts_path(path);                                   \
        if (counts && (changes(flags) ? fails_to_change(0) : fails())) return -1; \
        return opened(REAL(int, name, const char *, int, mode_t)(path, flags, mode), counts); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                      \
    int name(int at, const char *path, int flags, ...) {                  \
        va_list more;                                                     \
        va_start(more, flags);                                            \
        mode_t mode = va_arg(more, mode_t);                               \
        va_end(more);                                                     \
        int counts = counts_path(path) || counts_fd(at);                  \
        if (counts && (changes(flags) ? fails_to_change(0) : fails())) return -1; \
        return opened(REAL(int, name, int, const char *, int, mode_t)(at, path, flags, mode), counts); \
    }
OPENAT(openat)
OPENAT(openat64)

int close(int fd) {
    if (fd >= 0 && fd < MOST_FILES) atomic_store(&is_below[fd], 0);
    return REAL(int, close, int)(fd);
}

DIR *opendir(const char *path) {
    int counts = counts_path(path);
    if (counts && fails()) return NULL;
    DIR *folder = REAL(DIR *, opendir, const char *)(path);
    if (folder) opened(dirfd(folder), counts);
    return folder;
}

struct dirent *readdir(DIR *folder) {
    if (counts_fd(dirfd(folder)) && fails()) return NULL;
    return REAL(struct dirent *, readdir, DIR *)(folder);
}

struct dirent64 *readdir64(DIR *folder) {
    if (counts_fd(dirfd(folder)) && fails()) return NULL;
    return REAL(struct dirent64 *, readdir64, DIR *)(folder);
}

#define OF_FD(type, name, failing, parameters, arguments, ...)            \
    type name parameters {                                                \
        if (counts_fd(fd) && failing) return -1;                          \
        return REAL(type, name, __VA_ARGS__) arguments;                   \
    }
OF_FD(ssize_t, read, fails(), (int fd, void *to, size_t bytes), (fd, to, bytes), int, void *, size_t)
OF_FD(ssize_t, write, fails_to_change(0), (int fd, const void *from, size_t bytes), (fd, from, bytes), int, const void *, size_t)
OF_FD(ssize_t, pread, fails(), (int fd, void *to, size_t bytes, off_t at), (fd, to, bytes, at), int, void *, size_t, off_t)
OF_FD(ssize_t, pread64, fails(), (int fd, void *to, size_t bytes, off64_t at), (fd, to, bytes, at), int, void *, size_t, off64_t)
OF_FD(ssize_t, pwrite, fails_to_change(0), (int fd, const void *from, size_t bytes, off_t at), (fd, from, bytes, at), int, const void *, size_t, off_t)
OF_FD(ssize_t, pwrite64, fails_to_change(0), (int fd, const void *from, size_t bytes, off64_t at), (fd, from, bytes, at), int, const void *, size_t, off64_t)
OF_FD(int, fsync, fails_to_change(1), (int fd), (fd), int)
OF_FD(int, fdatasync, fails_to_change(1), (int fd), (fd), int)
OF_FD(int, ftruncate, fails_to_change(1), (int fd, off_t bytes), (fd, bytes), int, off_t)
OF_FD(int, ftruncate64, fails_to_change(1), (int fd, off64_t bytes), (fd, bytes), int, off64_t)

#define OF_PATH(name, makes_room, parameters, arguments, ...)             \
    int name parameters {                                                 \
        if (counts_path(path) && fails_to_change(makes_room)) return -1;  \
        return REAL(int, name, __VA_ARGS__) arguments;                    \
    }
OF_PATH(rename, 0, (const char *path, const char *to), (path, to), const char *, const char *)
OF_PATH(link, 0, (const char *path, const char *to), (path, to), const char *, const char *)
OF_PATH(unlink, 1, (const char *path), (path), const char *)
OF_PATH(rmdir, 1, (const char *path), (path), const char *)
OF_PATH(mkdir, 0, (const char *path, mode_t mode), (path, mode), const char *, mode_t)

int linkat(int at, const char *path, int to_at, const char *to, int flags) {
    if (counts_path(path) && fails_to_change(0)) return -1;
    return REAL(int, linkat, int, const char *, int, const char *, int)(at, path, to_at, to, flags);
}

int unlinkat(int at, const char *path, int flags) {
    if ((counts_path(path) || counts_fd(at)) && fails_to_change(1)) return -1;
    return REAL(int, unlinkat, int, const char *, int)(at, path, flags);
}

struct statx;
int statx(int at, const char *path, int flags, unsigned mask, struct statx *to) {
    if ((counts_path(path) || counts_fd(at)) && fails()) return -1;
    return REAL(int, statx, int, const char *, int, unsigned, struct statx *)(at, path, flags, mask, to);
}

// Ragstone ends itself without its destructors, once all is written.
__attribute__((noreturn)) void _exit(int code) {
    end();
    REAL(void, _exit, int)(code);
    __builtin_unreachable();
}
