/* A plugin with a file system in memory, for the URIs `mem://…`. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/experimental/filesystem/filesystem_interface.h"

typedef struct File {
  char* path;
  char* data;
  size_t length;
  bool is_directory;
  struct File* next;
} File;

static File* files;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void* allocate(size_t size) { return malloc(size); }
static void release(void* memory) { free(memory); }

static File* find(const char* path) {
  for (File* file = files; file; file = file->next) {
    if (!strcmp(file->path, path)) return file;
  }
  return NULL;
}

static File* add(const char* path, bool is_directory) {
  File* file = find(path);
  if (!file) {
    file = calloc(1, sizeof *file);
    file->path = strdup(path);
    file->next = files;
    files = file;
  }
  file->is_directory = is_directory;
  return file;
}

static void set(TF_Status* status, TF_Code code, const char* path) {
  TF_SetStatus(status, code, code == TF_OK ? "" : path);
}

static void init(TF_Filesystem* filesystem, TF_Status* status) {
  filesystem->plugin_filesystem = &files;
  set(status, TF_OK, "");
}

static void cleanup(TF_Filesystem* filesystem) { (void)filesystem; }

static void open_file(const TF_Filesystem* filesystem, const char* path, TF_RandomAccessFile* opened,
                      TF_Status* status) {
  (void)filesystem;
  pthread_mutex_lock(&mutex);
  File* file = find(path);
  bool is_file = file && !file->is_directory;
  opened->plugin_file = file;
  set(status, is_file ? TF_OK : TF_NOT_FOUND, path);
  pthread_mutex_unlock(&mutex);
}

static void close_read(TF_RandomAccessFile* file) { file->plugin_file = NULL; }

static int64_t read_file(const TF_RandomAccessFile* opened, uint64_t offset, size_t n, char* buffer,
                         TF_Status* status) {
  pthread_mutex_lock(&mutex);
  File* file = opened->plugin_file;
  size_t left = offset < file->length ? file->length - offset : 0;
  size_t count = n < left ? n : left;
  if (count) memcpy(buffer, file->data + offset, count);
  set(status, count < n ? TF_OUT_OF_RANGE : TF_OK, "end");
  pthread_mutex_unlock(&mutex);
  return (int64_t)count;
}

static void create_file(const TF_Filesystem* filesystem, const char* path, TF_WritableFile* created,
                        TF_Status* status) {
  (void)filesystem;
  pthread_mutex_lock(&mutex);
  File* file = add(path, false);
  file->length = 0;
  created->plugin_file = file;
  set(status, TF_OK, path);
  pthread_mutex_unlock(&mutex);
}

static void close_written(TF_WritableFile* file) { file->plugin_file = NULL; }

static void append(const TF_WritableFile* created, const char* buffer, size_t n, TF_Status* status) {
  pthread_mutex_lock(&mutex);
  File* file = created->plugin_file;
  file->data = realloc(file->data, file->length + n);
  memcpy(file->data + file->length, buffer, n);
  file->length += n;
  set(status, TF_OK, "");
  pthread_mutex_unlock(&mutex);
}

static void create_dir(const TF_Filesystem* filesystem, const char* path, TF_Status* status) {
  (void)filesystem;
  pthread_mutex_lock(&mutex);
  bool is_new = !find(path);
  if (is_new) add(path, true);
  set(status, is_new ? TF_OK : TF_ALREADY_EXISTS, path);
  pthread_mutex_unlock(&mutex);
}

static void delete_path(const TF_Filesystem* filesystem, const char* path, TF_Status* status) {
  (void)filesystem;
  pthread_mutex_lock(&mutex);
  TF_Code code = TF_NOT_FOUND;
  for (File** at = &files; *at; at = &(*at)->next) {
    File* file = *at;
    if (strcmp(file->path, path)) continue;
    *at = file->next;
    free(file->path);
    free(file->data);
    free(file);
    code = TF_OK;
    break;
  }
  set(status, code, path);
  pthread_mutex_unlock(&mutex);
}

static void rename_file(const TF_Filesystem* filesystem, const char* from, const char* to, TF_Status* status) {
  delete_path(filesystem, to, status);
  pthread_mutex_lock(&mutex);
  File* file = find(from);
  if (file) {
    free(file->path);
    file->path = strdup(to);
  }
  set(status, file ? TF_OK : TF_NOT_FOUND, from);
  pthread_mutex_unlock(&mutex);
}

static void stat_file(const TF_Filesystem* filesystem, const char* path, TF_FileStatistics* stats,
                      TF_Status* status) {
  (void)filesystem;
  pthread_mutex_lock(&mutex);
  File* file = find(path);
  bool is_root = !strcmp(path, "/");
  if (file) stats->length = (int64_t)file->length;
  stats->is_directory = is_root || (file && file->is_directory);
  set(status, file || is_root ? TF_OK : TF_NOT_FOUND, path);
  pthread_mutex_unlock(&mutex);
}

static int children(const TF_Filesystem* filesystem, const char* path, char*** entries, TF_Status* status) {
  (void)filesystem;
  pthread_mutex_lock(&mutex);
  size_t begin = strcmp(path, "/") ? strlen(path) : 0;
  int count = 0;
  *entries = NULL;
  for (File* file = files; file; file = file->next) {
    if (strncmp(file->path, path, begin) || file->path[begin] != '/') continue;
    const char* name = file->path + begin + 1;
    if (!*name || strchr(name, '/')) continue;
    *entries = realloc(*entries, (size_t)(count + 1) * sizeof **entries);
    (*entries)[count++] = strdup(name);
  }
  set(status, TF_OK, path);
  pthread_mutex_unlock(&mutex);
  return count;
}

void TF_InitPlugin(TF_FilesystemPluginInfo* info) {
  info->plugin_memory_allocate = allocate;
  info->plugin_memory_free = release;
  info->num_schemes = 1;
  info->ops = calloc(1, sizeof *info->ops);
  info->ops->scheme = strdup("mem");
  TF_SetFilesystemVersionMetadata(info->ops);
  TF_FilesystemOps* system = info->ops->filesystem_ops = calloc(1, sizeof *system);
  system->init = init;
  system->cleanup = cleanup;
  system->new_random_access_file = open_file;
  system->new_writable_file = create_file;
  system->create_dir = create_dir;
  system->delete_file = delete_path;
  system->delete_dir = delete_path;
  system->rename_file = rename_file;
  system->stat = stat_file;
  system->get_children = children;
  TF_RandomAccessFileOps* reads = info->ops->random_access_file_ops = calloc(1, sizeof *reads);
  reads->cleanup = close_read;
  reads->read = read_file;
  TF_WritableFileOps* writes = info->ops->writable_file_ops = calloc(1, sizeof *writes);
  writes->cleanup = close_written;
  writes->append = append;
#ifdef WRONG_ABI
  info->ops->writable_file_ops_abi = 7;
  free(info->ops->scheme);
  info->ops->scheme = strdup("wrong");
#endif
}
