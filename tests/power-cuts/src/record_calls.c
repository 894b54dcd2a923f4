// Preloaded into a process, it writes down every change that the process makes below a folder, in the order in which the system made them:
// what a power cut may leave of them follows from that.
//
//   RECORD_BELOW  the folder, by its canonical path
//   RECORD_TO     the file that gets the changes
//
// A record, little-endian: kind u8, three zeros, bytes of the first text u32, bytes of the second u32, a u64, b u64, both texts.
//
//   R  the folder itself is inode a          C  a file, the first text, is made; inode a     D  a folder, likewise
//   W  inode a gets the first text at b      T  inode a has b bytes                          S  inode a is synced
//   N  the first name becomes the second     L  the first name's inode also has the second   U  the name is taken away
//   ?  what a replay cannot do; the first text says what
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))
#define MOST_INODES (1 << 20)

static char below[PATH_MAX];
static size_t below_length;
static int log_fd = -1;
static dev_t device;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
// The inodes that are, or were, below the folder: an open hash table.
static ino_t known[MOST_INODES];

static void write_all(const void *from, size_t bytes) {
    while (bytes > 0) {
        ssize_t written = REAL(ssize_t, write, int, const void *, size_t)(log_fd, from, bytes);
        if (written <= 0) abort();
        from = (const char *)from + written;
        bytes -= (size_t)written;
    }
}

static void record(char kind, uint64_t a, uint64_t b, const char *one, size_t one_bytes, const char *two) {
    size_t two_bytes = two ? strlen(two) : 0;
    unsigned char head[28] = {(unsigned char)kind};
    uint32_t lengths[2] = {(uint32_t)one_bytes, (uint32_t)two_bytes};
    uint64_t numbers[2] = {a, b};
    memcpy(head + 4, lengths, 8);
    memcpy(head + 12, numbers, 16);
    write_all(head, sizeof head);
    write_all(one, one_bytes);
    write_all(two, two_bytes);
}

static void cannot(const char *what) { record('?', 0, 0, what, strlen(what), NULL); }

static void add_known(ino_t inode) {
    size_t at = (size_t)inode * 0x9E3779B97F4A7C15u % MOST_INODES;
    for (size_t step = 0; step < MOST_INODES; step++, at = (at + 1) % MOST_INODES) {
        if (known[at] == inode) return;
        if (known[at] == 0) {
            known[at] = inode;
            return;
        }
    }
    abort();
}

static int is_known(ino_t inode) {
    size_t at = (size_t)inode * 0x9E3779B97F4A7C15u % MOST_INODES;
    for (; known[at] != 0; at = (at + 1) % MOST_INODES) {
        if (known[at] == inode) return 1;
    }
    return 0;
}

static int found_there(const char *path, const struct stat *found, int kind, struct FTW *where) {
    (void)path, (void)kind, (void)where;
    add_known(found->st_ino);
    return 0;
}

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("RECORD_BELOW"), *to = getenv("RECORD_TO");
    struct stat found;
    if (!folder || !to || stat(folder, &found) != 0) return;
    int fd = REAL(int, open, const char *, int, ...)(to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) abort();
    snprintf(below, sizeof below, "%s", folder);
    below_length = strlen(below);
    device = found.st_dev;
    log_fd = fd;
    // What an earlier process made.
    nftw(folder, found_there, 16, FTW_PHYS);
    record('R', found.st_ino, 0, "", 0, NULL);
    // Children are recorded by nobody.
    unsetenv("RECORD_BELOW");
}

static void take(void) { pthread_mutex_lock(&lock); }
static void give(void) {
    int kept = errno;
    pthread_mutex_unlock(&lock);
    errno = kept;
}

// The path below the folder, without doubled slashes; NULL where it is elsewhere.
static const char *within(int at, const char *path, char *to) {
    char whole[2 * PATH_MAX + 2];
    if (log_fd < 0 || !path) return NULL;
    if (path[0] == '/') {
        snprintf(whole, sizeof whole, "%s", path);
    } else if (at == AT_FDCWD) {
        char here[PATH_MAX];
        if (!getcwd(here, sizeof here)) return NULL;
        snprintf(whole, sizeof whole, "%s/%s", here, path);
    } else {
        char link[64], here[PATH_MAX];
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t bytes = readlink(link, here, sizeof here - 1);
        if (bytes < 0) return NULL;
        here[bytes] = 0;
        snprintf(whole, sizeof whole, "%s/%s", here, path);
    }
    char clean[2 * PATH_MAX + 2];
    size_t end = 0;
    for (const char *from = whole; *from; from++) {
        int doubled = from[0] == '/' && (from[1] == '/' || from[1] == 0 || (from[1] == '.' && (from[2] == '/' || from[2] == 0)));
        if (doubled) {
            if (from[1] == '.') from++;
            continue;
        }
        clean[end++] = *from;
    }
    clean[end] = 0;
    if (strncmp(clean, below, below_length) != 0 || clean[below_length] != '/') return NULL;
    snprintf(to, PATH_MAX, "%s", clean + below_length + 1);
    return to;
}

// The inode of an open file or folder that is below the folder; 0 where it is another.
static ino_t inode_of(int fd, off_t *size) {
    struct stat found;
    if (log_fd < 0 || fd == log_fd || fstat(fd, &found) != 0 || found.st_dev != device) return 0;
    if (!S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode)) return 0;
    if (size) *size = found.st_size;
    return is_known(found.st_ino) ? found.st_ino : 0;
}

static int opened(int at, const char *path, int flags, mode_t mode, int (*call)(int, const char *, int, mode_t)) {
    char name[PATH_MAX];
    if (!within(at, path, name) || !(flags & (O_CREAT | O_TRUNC | O_TMPFILE))) return call(at, path, flags, mode);
    take();
    struct stat before, after;
    int was_there = fstatat(at, path, &before, 0) == 0;
    int fd = call(at, path, flags, mode);
    if (fd >= 0 && fstat(fd, &after) == 0 && S_ISREG(after.st_mode)) {
        if ((flags & O_TMPFILE) == O_TMPFILE) {
            cannot("a file without a name");
        } else if (!was_there) {
            add_known(after.st_ino);
            record('C', after.st_ino, 0, name, strlen(name), NULL);
        } else if (flags & O_TRUNC) {
            record('T', after.st_ino, 0, "", 0, NULL);
        }
    }
    give();
    return fd;
}

static int call_open(int at, const char *path, int flags, mode_t mode) {
    return REAL(int, openat, int, const char *, int, ...)(at, path, flags, mode);
}

#define MODE(flags)                                      \
    mode_t mode = 0;                                     \
    if ((flags) & (O_CREAT | O_TMPFILE)) {               \
        va_list more;                                    \
        va_start(more, flags);                           \
        mode = va_arg(more, mode_t);                     \
        va_end(more);                                    \
    }
#define OPEN(name)                                       \
    int name(const char *path, int flags, ...) {         \
        MODE(flags)                                      \
        return opened(AT_FDCWD, path, flags, mode, call_open); \
    }
#define OPENAT(name)                                     \
    int name(int at, const char *path, int flags, ...) { \
        MODE(flags)                                      \
        return opened(at, path, flags, mode, call_open); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode, call_open); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

// `call` writes, and gives how much it wrote; at -1 it is where the file stands.
#define WRITES(offset, data, call)                                                        \
    if (!inode_of(fd, NULL)) return call;                                                 \
    take();                                                                               \
    ino_t inode = inode_of(fd, NULL);                                                     \
    ssize_t written = call;                                                               \
    if (written > 0 && inode) {                                                           \
        off_t begun = (offset) >= 0 ? (offset) : lseek(fd, 0, SEEK_CUR) - written;        \
        record('W', inode, (uint64_t)begun, data, (size_t)written, NULL);                 \
    }                                                                                     \
    give();                                                                               \
    return written;

ssize_t write(int fd, const void *from, size_t bytes) {
    WRITES((off_t)-1, from, REAL(ssize_t, write, int, const void *, size_t)(fd, from, bytes))
}
#define PWRITE(name)                                                                      \
    ssize_t name(int fd, const void *from, size_t bytes, off_t at) {                      \
        WRITES(at, from, REAL(ssize_t, name, int, const void *, size_t, off_t)(fd, from, bytes, at)) \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

// One piece after the other: a part of what was asked for may be written in any case.
ssize_t writev(int fd, const struct iovec *pieces, int count) {
    if (!inode_of(fd, NULL)) return REAL(ssize_t, writev, int, const struct iovec *, int)(fd, pieces, count);
    for (int piece = 0; piece < count; piece++) {
        if (pieces[piece].iov_len > 0) return write(fd, pieces[piece].iov_base, pieces[piece].iov_len);
    }
    return 0;
}
#define PWRITEV(name)                                                                     \
    ssize_t name(int fd, const struct iovec *pieces, int count, off_t at) {               \
        if (!inode_of(fd, NULL))                                                          \
            return REAL(ssize_t, name, int, const struct iovec *, int, off_t)(fd, pieces, count, at); \
        for (int piece = 0; piece < count; piece++) {                                     \
            if (pieces[piece].iov_len > 0) return pwrite(fd, pieces[piece].iov_base, pieces[piece].iov_len, at); \
        }                                                                                 \
        return 0;                                                                         \
    }
PWRITEV(pwritev)
PWRITEV(pwritev64)

// What has no record of its own is done by others, or fails and is done by writes.
ssize_t copy_file_range(int from, off64_t *from_at, int fd, off64_t *at, size_t bytes, unsigned flags) {
    if (!inode_of(fd, NULL))
        return REAL(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t, unsigned)(from, from_at, fd, at, bytes, flags);
    errno = EINVAL;
    return -1;
}
#define SENDFILE(name)                                                                    \
    ssize_t name(int fd, int from, off_t *at, size_t bytes) {                             \
        if (!inode_of(fd, NULL)) return REAL(ssize_t, name, int, int, off_t *, size_t)(fd, from, at, bytes); \
        errno = EINVAL;                                                                   \
        return -1;                                                                        \
    }
SENDFILE(sendfile)
SENDFILE(sendfile64)

#define MMAP(name)                                                                        \
    void *name(void *where, size_t bytes, int protection, int flags, int fd, off_t at) {  \
        if (fd >= 0 && (protection & PROT_WRITE) && (flags & MAP_SHARED) && inode_of(fd, NULL)) { \
            take();                                                                       \
            cannot("a file is mapped to be written to");                                  \
            give();                                                                       \
        }                                                                                 \
        return REAL(void *, name, void *, size_t, int, int, int, off_t)(where, bytes, protection, flags, fd, at); \
    }
MMAP(mmap)
MMAP(mmap64)

// What may change a file's length.
#define LENGTH(call)                                                                      \
    off_t before = 0, after = 0;                                                          \
    if (!inode_of(fd, NULL)) return call;                                                 \
    take();                                                                               \
    ino_t inode = inode_of(fd, &before);                                                  \
    int done = call;                                                                      \
    if (done == 0 && inode && inode_of(fd, &after) && after != before) record('T', inode, (uint64_t)after, "", 0, NULL); \
    give();                                                                               \
    return done;

int ftruncate(int fd, off_t bytes) { LENGTH((REAL(int, ftruncate, int, off_t)(fd, bytes))) }
int ftruncate64(int fd, off64_t bytes) { LENGTH((REAL(int, ftruncate64, int, off64_t)(fd, bytes))) }
int fallocate(int fd, int mode, off_t at, off_t bytes) { LENGTH((REAL(int, fallocate, int, int, off_t, off_t)(fd, mode, at, bytes))) }
int fallocate64(int fd, int mode, off64_t at, off64_t bytes) {
    LENGTH((REAL(int, fallocate64, int, int, off64_t, off64_t)(fd, mode, at, bytes)))
}
int posix_fallocate(int fd, off_t at, off_t bytes) { LENGTH((REAL(int, posix_fallocate, int, off_t, off_t)(fd, at, bytes))) }
int posix_fallocate64(int fd, off64_t at, off64_t bytes) { LENGTH((REAL(int, posix_fallocate64, int, off64_t, off64_t)(fd, at, bytes))) }

#define SYNC(name)                                                                        \
    int name(int fd) {                                                                    \
        if (!inode_of(fd, NULL)) return REAL(int, name, int)(fd);                         \
        take();                                                                           \
        ino_t inode = inode_of(fd, NULL);                                                 \
        int done = REAL(int, name, int)(fd);                                              \
        if (done == 0 && inode) record('S', inode, 0, "", 0, NULL);                       \
        give();                                                                           \
        return done;                                                                      \
    }
SYNC(fsync)
SYNC(fdatasync)

// Two names, of which the second gets what the first has.
static int named(char kind, int at, const char *path, int to_at, const char *to, int done) {
    char one[PATH_MAX], two[PATH_MAX];
    const char *from = within(at, path, one), *onto = within(to_at, to, two);
    if (done == 0 && from && onto) record(kind, 0, 0, from, strlen(from), onto);
    if (done == 0 && !from != !onto) cannot("a name that leaves the folder, or comes from elsewhere");
    return done;
}
#define NAMED(kind, at, path, to_at, to, call)                                            \
    take();                                                                               \
    int done = named(kind, at, path, to_at, to, call);                                    \
    give();                                                                               \
    return done;

int rename(const char *path, const char *to) {
    NAMED('N', AT_FDCWD, path, AT_FDCWD, to, (REAL(int, rename, const char *, const char *)(path, to)))
}
int renameat(int at, const char *path, int to_at, const char *to) {
    NAMED('N', at, path, to_at, to, (REAL(int, renameat, int, const char *, int, const char *)(at, path, to_at, to)))
}
int renameat2(int at, const char *path, int to_at, const char *to, unsigned flags) {
    NAMED('N', at, path, to_at, to, (REAL(int, renameat2, int, const char *, int, const char *, unsigned)(at, path, to_at, to, flags)))
}
int link(const char *path, const char *to) {
    NAMED('L', AT_FDCWD, path, AT_FDCWD, to, (REAL(int, link, const char *, const char *)(path, to)))
}
int linkat(int at, const char *path, int to_at, const char *to, int flags) {
    NAMED('L', at, path, to_at, to, (REAL(int, linkat, int, const char *, int, const char *, int)(at, path, to_at, to, flags)))
}
int symlink(const char *path, const char *to) {
    char name[PATH_MAX];
    take();
    if (within(AT_FDCWD, to, name)) cannot("a link by name");
    int done = REAL(int, symlink, const char *, const char *)(path, to);
    give();
    return done;
}

static int taken_away(int at, const char *path, int done) {
    char name[PATH_MAX];
    if (done == 0 && within(at, path, name)) record('U', 0, 0, name, strlen(name), NULL);
    return done;
}
#define AWAY(at, path, call)               \
    take();                                \
    int done = taken_away(at, path, call); \
    give();                                \
    return done;

int unlink(const char *path) { AWAY(AT_FDCWD, path, (REAL(int, unlink, const char *)(path))) }
int rmdir(const char *path) { AWAY(AT_FDCWD, path, (REAL(int, rmdir, const char *)(path))) }
int remove(const char *path) { AWAY(AT_FDCWD, path, (REAL(int, remove, const char *)(path))) }
int unlinkat(int at, const char *path, int flags) { AWAY(at, path, (REAL(int, unlinkat, int, const char *, int)(at, path, flags))) }

static int made(int at, const char *path, int done) {
    char name[PATH_MAX];
    struct stat found;
    if (done == 0 && within(at, path, name) && fstatat(at, path, &found, 0) == 0) {
        add_known(found.st_ino);
        record('D', found.st_ino, 0, name, strlen(name), NULL);
    }
    return done;
}
int mkdir(const char *path, mode_t mode) {
    take();
    int done = made(AT_FDCWD, path, REAL(int, mkdir, const char *, mode_t)(path, mode));
    give();
    return done;
}
int mkdirat(int at, const char *path, mode_t mode) {
    take();
    int done = made(at, path, REAL(int, mkdirat, int, const char *, mode_t)(at, path, mode));
    give();
    return done;
}
