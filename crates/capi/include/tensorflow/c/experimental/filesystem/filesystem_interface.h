/* File systems of plugins: a library that TF_RegisterFilesystemPlugin loads defines TF_InitPlugin. */
#ifndef TENSORFLOW_C_EXPERIMENTAL_FILESYSTEM_FILESYSTEM_INTERFACE_H_
#define TENSORFLOW_C_EXPERIMENTAL_FILESYSTEM_FILESYSTEM_INTERFACE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensorflow/c/c_api_macros.h"
#include "tensorflow/c/tf_file_statistics.h"
#include "tensorflow/c/tf_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Objects of a plugin; the pointers are its own. */
typedef struct TF_RandomAccessFile {
  void* plugin_file;
} TF_RandomAccessFile;

typedef struct TF_WritableFile {
  void* plugin_file;
} TF_WritableFile;

typedef struct TF_ReadOnlyMemoryRegion {
  void* plugin_memory_region;
} TF_ReadOnlyMemoryRegion;

typedef struct TF_Filesystem {
  void* plugin_filesystem;
} TF_Filesystem;

typedef struct TF_TransactionToken {
  void* token;
  TF_Filesystem* owner;
} TF_TransactionToken;

typedef struct TF_Filesystem_Option TF_Filesystem_Option;

/* Functions of files that are read; the status is TF_OUT_OF_RANGE at the end. */
typedef struct TF_RandomAccessFileOps {
  void (*cleanup)(TF_RandomAccessFile* file);
  int64_t (*read)(const TF_RandomAccessFile* file, uint64_t offset, size_t n, char* buffer, TF_Status* status);
} TF_RandomAccessFileOps;

/* Functions of files that are written. */
typedef struct TF_WritableFileOps {
  void (*cleanup)(TF_WritableFile* file);
  void (*append)(const TF_WritableFile* file, const char* buffer, size_t n, TF_Status* status);
  int64_t (*tell)(const TF_WritableFile* file, TF_Status* status);
  void (*flush)(const TF_WritableFile* file, TF_Status* status);
  void (*sync)(const TF_WritableFile* file, TF_Status* status);
  void (*close)(const TF_WritableFile* file, TF_Status* status);
} TF_WritableFileOps;

typedef struct TF_ReadOnlyMemoryRegionOps {
  void (*cleanup)(TF_ReadOnlyMemoryRegion* region);
  const void* (*data)(const TF_ReadOnlyMemoryRegion* region);
  uint64_t (*length)(const TF_ReadOnlyMemoryRegion* region);
} TF_ReadOnlyMemoryRegionOps;

/* Functions of a file system. Those that are NULL are not supported; init and cleanup must be there. Memory that
 * they return is freed by plugin_memory_free. */
typedef struct TF_FilesystemOps {
  void (*init)(TF_Filesystem* filesystem, TF_Status* status);
  void (*cleanup)(TF_Filesystem* filesystem);
  void (*new_random_access_file)(
      const TF_Filesystem* filesystem, const char* path, TF_RandomAccessFile* file, TF_Status* status);
  void (*new_writable_file)(
      const TF_Filesystem* filesystem, const char* path, TF_WritableFile* file, TF_Status* status);
  void (*new_appendable_file)(
      const TF_Filesystem* filesystem, const char* path, TF_WritableFile* file, TF_Status* status);
  void (*new_read_only_memory_region_from_file)(
      const TF_Filesystem* filesystem, const char* path, TF_ReadOnlyMemoryRegion* region, TF_Status* status);
  void (*create_dir)(const TF_Filesystem* filesystem, const char* path, TF_Status* status);
  void (*recursively_create_dir)(const TF_Filesystem* filesystem, const char* path, TF_Status* status);
  void (*delete_file)(const TF_Filesystem* filesystem, const char* path, TF_Status* status);
  void (*delete_dir)(const TF_Filesystem* filesystem, const char* path, TF_Status* status);
  void (*delete_recursively)(
      const TF_Filesystem* filesystem, const char* path, uint64_t* undeleted_files, uint64_t* undeleted_dirs,
      TF_Status* status);
  void (*rename_file)(const TF_Filesystem* filesystem, const char* src, const char* dst, TF_Status* status);
  void (*copy_file)(const TF_Filesystem* filesystem, const char* src, const char* dst, TF_Status* status);
  void (*path_exists)(const TF_Filesystem* filesystem, const char* path, TF_Status* status);
  bool (*paths_exist)(const TF_Filesystem* filesystem, char** paths, int num_files, TF_Status** statuses);
  void (*stat)(const TF_Filesystem* filesystem, const char* path, TF_FileStatistics* stats, TF_Status* status);
  bool (*is_directory)(const TF_Filesystem* filesystem, const char* path, TF_Status* status);
  int64_t (*get_file_size)(const TF_Filesystem* filesystem, const char* path, TF_Status* status);
  char* (*translate_name)(const TF_Filesystem* filesystem, const char* uri);
  int (*get_children)(const TF_Filesystem* filesystem, const char* path, char*** entries, TF_Status* status);
  int (*get_matching_paths)(const TF_Filesystem* filesystem, const char* glob, char*** entries, TF_Status* status);
  void (*flush_caches)(const TF_Filesystem* filesystem);
  /* Not used. */
  int (*start_transaction)(const TF_Filesystem* filesystem, TF_TransactionToken** token, TF_Status* status);
  int (*end_transaction)(const TF_Filesystem* filesystem, TF_TransactionToken* token, TF_Status* status);
  int (*add_to_transaction)(
      const TF_Filesystem* filesystem, const char* path, TF_TransactionToken* token, TF_Status* status);
  int (*get_transaction_for_path)(
      const TF_Filesystem* filesystem, const char* path, TF_TransactionToken** token, TF_Status* status);
  int (*get_or_start_transaction_for_path)(
      const TF_Filesystem* filesystem, const char* path, TF_TransactionToken** token, TF_Status* status);
  char* (*decode_transaction_token)(const TF_Filesystem* filesystem, const TF_TransactionToken* token);
  void (*get_filesystem_configuration)(
      const TF_Filesystem* filesystem, TF_Filesystem_Option** options, int* num_options, TF_Status* status);
  void (*set_filesystem_configuration)(
      const TF_Filesystem* filesystem, const TF_Filesystem_Option* options, int num_options, TF_Status* status);
  void (*get_filesystem_configuration_option)(
      const TF_Filesystem* filesystem, const char* key, TF_Filesystem_Option** option, TF_Status* status);
  void (*set_filesystem_configuration_option)(
      const TF_Filesystem* filesystem, const TF_Filesystem_Option* option, TF_Status* status);
  void (*get_filesystem_configuration_keys)(
      const TF_Filesystem* filesystem, char** keys, int* num_keys, TF_Status* status);
} TF_FilesystemOps;

/* The versions of this header. */
enum {
  TF_RANDOM_ACCESS_FILE_OPS_API = 0,
  TF_RANDOM_ACCESS_FILE_OPS_ABI = 0,
  TF_WRITABLE_FILE_OPS_API = 0,
  TF_WRITABLE_FILE_OPS_ABI = 0,
  TF_READ_ONLY_MEMORY_REGION_OPS_API = 0,
  TF_READ_ONLY_MEMORY_REGION_OPS_ABI = 0,
  TF_FILESYSTEM_OPS_API = 0,
  TF_FILESYSTEM_OPS_ABI = 0
};

/* A file system for the URIs of a scheme, with versions and sizes of its tables. */
typedef struct TF_FilesystemPluginOps {
  char* scheme;
  int filesystem_ops_abi;
  int filesystem_ops_api;
  size_t filesystem_ops_size;
  TF_FilesystemOps* filesystem_ops;
  int random_access_file_ops_abi;
  int random_access_file_ops_api;
  size_t random_access_file_ops_size;
  TF_RandomAccessFileOps* random_access_file_ops;
  int writable_file_ops_abi;
  int writable_file_ops_api;
  size_t writable_file_ops_size;
  TF_WritableFileOps* writable_file_ops;
  int read_only_memory_region_ops_abi;
  int read_only_memory_region_ops_api;
  size_t read_only_memory_region_ops_size;
  TF_ReadOnlyMemoryRegionOps* read_only_memory_region_ops;
} TF_FilesystemPluginOps;

/* What TF_InitPlugin fills in; all memory comes from plugin_memory_allocate. */
typedef struct TF_FilesystemPluginInfo {
  size_t num_schemes;
  TF_FilesystemPluginOps* ops;
  void* (*plugin_memory_allocate)(size_t size);
  void (*plugin_memory_free)(void* ptr);
} TF_FilesystemPluginInfo;

/* Fills in versions and sizes. */
static inline void TF_SetFilesystemVersionMetadata(TF_FilesystemPluginOps* ops) {
  ops->filesystem_ops_abi = TF_FILESYSTEM_OPS_ABI;
  ops->filesystem_ops_api = TF_FILESYSTEM_OPS_API;
  ops->filesystem_ops_size = sizeof(TF_FilesystemOps);
  ops->random_access_file_ops_abi = TF_RANDOM_ACCESS_FILE_OPS_ABI;
  ops->random_access_file_ops_api = TF_RANDOM_ACCESS_FILE_OPS_API;
  ops->random_access_file_ops_size = sizeof(TF_RandomAccessFileOps);
  ops->writable_file_ops_abi = TF_WRITABLE_FILE_OPS_ABI;
  ops->writable_file_ops_api = TF_WRITABLE_FILE_OPS_API;
  ops->writable_file_ops_size = sizeof(TF_WritableFileOps);
  ops->read_only_memory_region_ops_abi = TF_READ_ONLY_MEMORY_REGION_OPS_ABI;
  ops->read_only_memory_region_ops_api = TF_READ_ONLY_MEMORY_REGION_OPS_API;
  ops->read_only_memory_region_ops_size = sizeof(TF_ReadOnlyMemoryRegionOps);
}

/* Defined by the plugin. */
TF_CAPI_EXPORT extern void TF_InitPlugin(TF_FilesystemPluginInfo* plugin_info);

#ifdef __cplusplus
}
#endif

#endif /* TENSORFLOW_C_EXPERIMENTAL_FILESYSTEM_FILESYSTEM_INTERFACE_H_ */
