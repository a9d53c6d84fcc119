// A file system that shows a file late, as NFS does: a file that another process has put into place by rename is missing
// for some seconds, if its path ends in a name of CAB_LATE_FILES, which has the form `NAME=SECONDS:NAME=SECONDS`.
//   cc -shared -fPIC -o late_files.so late_files.c -ldl; LD_PRELOAD=late_files.so COMMAND
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
enum { MOST_OWN = 4096 };
static ino_t own[MOST_OWN];  // the files that this process has put into place, which it sees at once
static int n_own;

static double seconds_of(const char *path) {
  const char *names = getenv("CAB_LATE_FILES");
  size_t length = path ? strlen(path) : 0;
  while (names && *names) {
    size_t size = strcspn(names, "=");
    if (size && size <= length && !strncmp(path + length - size, names, size)) return atof(names + size + 1);
    names += strcspn(names, ":");
    names += *names == ':';
  }
  return 0;
}

static int is_late(int folder, const char *path) {
  struct stat found;
  struct timespec now;
  double seconds = seconds_of(path);
  if (!seconds || syscall(SYS_newfstatat, folder, path, &found, 0)) return 0;
  for (int i = 0; i < n_own; i++)
    if (own[i] == found.st_ino) return 0;
  clock_gettime(CLOCK_REALTIME, &now);
  double age = (double)(now.tv_sec - found.st_ctim.tv_sec) + (now.tv_nsec - found.st_ctim.tv_nsec) / 1e9;
  if (age >= seconds) return 0;
  errno = ENOENT;
  return 1;
}

int rename(const char *from, const char *to) {
  int status = NEXT(rename)(from, to);
  struct stat found;
  if (!status && seconds_of(to) && n_own < MOST_OWN && !syscall(SYS_newfstatat, AT_FDCWD, to, &found, 0))
    own[n_own++] = found.st_ino;
  return status;
}

#define STAT(name, type) \
  int name(const char *path, struct type *to) { return is_late(AT_FDCWD, path) ? -1 : NEXT(name)(path, to); }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

#define FSTATAT(name, type)                                             \
  int name(int folder, const char *path, struct type *to, int flags) { \
    return is_late(folder, path) ? -1 : NEXT(name)(folder, path, to, flags); \
  }
FSTATAT(fstatat, stat)
FSTATAT(fstatat64, stat64)

int statx(int folder, const char *path, int flags, unsigned mask, struct statx *to) {
  return is_late(folder, path) ? -1 : NEXT(statx)(folder, path, flags, mask, to);
}
int access(const char *path, int mode) { return is_late(AT_FDCWD, path) ? -1 : NEXT(access)(path, mode); }

static mode_t mode_of(int flags, va_list rest) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; }

#define OPEN(name)                                      \
  int name(const char *path, int flags, ...) {         \
    va_list rest;                                       \
    va_start(rest, flags);                              \
    mode_t mode = mode_of(flags, rest);                 \
    va_end(rest);                                       \
    return is_late(AT_FDCWD, path) ? -1 : NEXT(name)(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                        \
  int name(int folder, const char *path, int flags, ...) { \
    va_list rest;                                           \
    va_start(rest, flags);                                  \
    mode_t mode = mode_of(flags, rest);                     \
    va_end(rest);                                           \
    return is_late(folder, path) ? -1 : NEXT(name)(folder, path, flags, mode); \
  }
OPENAT(openat)
OPENAT(openat64)
