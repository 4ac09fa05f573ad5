//! File systems of plugins (`tensorflow/c/experimental/filesystem/filesystem_interface.h`).

use crate::env::TF_FileStatistics;
use crate::env::not_loaded;
use crate::guard::{guard, text};
use crate::{TF_NewStatus, TF_Status};
use ferroflow_base::{
    Code, Result, Status, failed_precondition, invalid_argument, not_found, unimplemented_error,
};
use ferroflow_model::files::{FileInfo, FileSystem, register_file_system};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::size_of;
use std::sync::Arc;

/// An object of a plugin: `TF_Filesystem`, `TF_RandomAccessFile` and `TF_WritableFile`.
#[repr(C)]
struct Object(*mut c_void);

type OnPath = Option<unsafe extern "C" fn(*const Object, *const c_char, *mut TF_Status)>;
type OpenFile =
    Option<unsafe extern "C" fn(*const Object, *const c_char, *mut Object, *mut TF_Status)>;
type OnTwoPaths =
    Option<unsafe extern "C" fn(*const Object, *const c_char, *const c_char, *mut TF_Status)>;
type ListPaths = Option<
    unsafe extern "C" fn(
        *const Object,
        *const c_char,
        *mut *mut *mut c_char,
        *mut TF_Status,
    ) -> c_int,
>;
type OnOpenFile = Option<unsafe extern "C" fn(*const Object, *mut TF_Status)>;
type Unused = *const c_void;

/// `TF_FilesystemOps`, as far as it is used.
#[repr(C)]
#[derive(Clone, Copy)]
struct SystemOps {
    init: Option<unsafe extern "C" fn(*mut Object, *mut TF_Status)>,
    cleanup: Option<unsafe extern "C" fn(*mut Object)>,
    new_random_access_file: OpenFile,
    new_writable_file: OpenFile,
    new_appendable_file: OpenFile,
    new_read_only_memory_region_from_file: OpenFile,
    create_dir: OnPath,
    recursively_create_dir: OnPath,
    delete_file: OnPath,
    delete_dir: OnPath,
    delete_recursively: Unused,
    rename_file: OnTwoPaths,
    copy_file: OnTwoPaths,
    path_exists: OnPath,
    paths_exist: Unused,
    stat: Option<
        unsafe extern "C" fn(*const Object, *const c_char, *mut TF_FileStatistics, *mut TF_Status),
    >,
    is_directory:
        Option<unsafe extern "C" fn(*const Object, *const c_char, *mut TF_Status) -> bool>,
    get_file_size:
        Option<unsafe extern "C" fn(*const Object, *const c_char, *mut TF_Status) -> i64>,
    translate_name: Option<unsafe extern "C" fn(*const Object, *const c_char) -> *mut c_char>,
    get_children: ListPaths,
    get_matching_paths: ListPaths,
}

/// `TF_RandomAccessFileOps`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ReadOps {
    cleanup: Option<unsafe extern "C" fn(*mut Object)>,
    read:
        Option<unsafe extern "C" fn(*const Object, u64, usize, *mut c_char, *mut TF_Status) -> i64>,
}

/// `TF_WritableFileOps`.
#[repr(C)]
#[derive(Clone, Copy)]
struct WriteOps {
    cleanup: Option<unsafe extern "C" fn(*mut Object)>,
    append: Option<unsafe extern "C" fn(*const Object, *const c_char, usize, *mut TF_Status)>,
    tell: Option<unsafe extern "C" fn(*const Object, *mut TF_Status) -> i64>,
    flush: OnOpenFile,
    sync: OnOpenFile,
    close: OnOpenFile,
}

/// `TF_ReadOnlyMemoryRegionOps`, which is only checked.
#[repr(C)]
#[derive(Clone, Copy)]
struct RegionOps {
    cleanup: Option<unsafe extern "C" fn(*mut Object)>,
    data: Option<unsafe extern "C" fn(*const Object) -> *const c_void>,
    length: Option<unsafe extern "C" fn(*const Object) -> u64>,
}

/// A table of functions with its versions and its size.
#[repr(C)]
struct Table<T> {
    abi: c_int,
    api: c_int,
    size: usize,
    ops: *mut T,
}

/// `TF_FilesystemPluginOps`.
#[repr(C)]
struct PluginOps {
    scheme: *mut c_char,
    system: Table<SystemOps>,
    read: Table<ReadOps>,
    write: Table<WriteOps>,
    region: Table<RegionOps>,
}

/// `TF_FilesystemPluginInfo`.
#[repr(C)]
struct PluginInfo {
    num_schemes: usize,
    ops: *mut PluginOps,
    allocate: Option<unsafe extern "C" fn(usize) -> *mut c_void>,
    free: Option<unsafe extern "C" fn(*mut c_void)>,
}

impl<T: Copy> Table<T> {
    /// A copy of the table, if there is one. What an older plugin lacks is NULL.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if its layout is another one.
    ///
    /// # Safety
    /// `ops` is NULL or has `size` bytes of functions.
    unsafe fn checked(&self, name: &str) -> Result<Option<T>> {
        if self.ops.is_null() {
            return Ok(None);
        }
        if self.abi != 0 {
            return Err(failed_precondition!(
                "Plugin ABI ({}) for {name} operations doesn't match expected core ABI (0). Plugin cannot \
                 be loaded.",
                self.abi
            ));
        }
        let mut copy = std::mem::MaybeUninit::<T>::zeroed();
        let n = self.size.min(size_of::<T>());
        // SAFETY: as this function's; tables consist of pointers, of which NULL is a value.
        unsafe {
            let to = copy.as_mut_ptr().cast::<u8>();
            to.copy_from_nonoverlapping(self.ops.cast::<u8>(), n);
            Ok(Some(copy.assume_init()))
        }
    }
}

/// A file system of a plugin.
struct Plugin {
    system: Box<Object>,
    ops: SystemOps,
    read: Option<ReadOps>,
    write: Option<WriteOps>,
    free: unsafe extern "C" fn(*mut c_void),
}

// SAFETY: TensorFlow, too, calls the functions of plugins from any thread.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

/// Calls a function of a plugin with a status, and returns what that says.
fn with_status<T>(call: impl FnOnce(*mut TF_Status) -> T) -> Result<T> {
    let status = TF_NewStatus();
    let value = call(status);
    // SAFETY: the status was made above and is not used otherwise.
    let status = unsafe { Box::from_raw(status) };
    match status.error() {
        None => Ok(value),
        Some(error) => Err(error),
    }
}

fn missing(path: &str, what: &str) -> Status {
    unimplemented_error!("Filesystem for {path} does not support {what}()")
}

/// A URI's path within its file system, as TensorFlow cleans it.
fn clean(uri: &str) -> String {
    let path = uri
        .split_once("://")
        .map_or(uri, |(_, rest)| rest.find('/').map_or("", |at| &rest[at..]));
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|p| !p.is_empty() && *p != ".") {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

impl Plugin {
    /// The name that the plugin has for a URI.
    fn name(&self, uri: &str) -> Result<CString> {
        let c_uri = CString::new(uri).map_err(|_| invalid_argument!("{uri:?} has a NUL"))?;
        let Some(translate) = self.ops.translate_name else {
            return CString::new(clean(uri)).map_err(|_| invalid_argument!("{uri:?} has a NUL"));
        };
        // SAFETY: the plugin's function, with its object and a C string.
        let name = unsafe { translate(&*self.system, c_uri.as_ptr()) };
        if name.is_null() {
            return Err(invalid_argument!("the plugin has no name for {uri}"));
        }
        // SAFETY: the plugin returned a C string, which it wants to be freed.
        unsafe {
            let own = CStr::from_ptr(name).to_owned();
            (self.free)(name.cast());
            Ok(own)
        }
    }

    fn on_path(&self, op: OnPath, what: &str, path: &str) -> Result<()> {
        let op = op.ok_or_else(|| missing(path, what))?;
        let name = self.name(path)?;
        // SAFETY: the plugin's function, with its object, a C string and a status.
        with_status(|status| unsafe { op(&*self.system, name.as_ptr(), status) })
    }

    fn open(&self, op: OpenFile, what: &str, path: &str) -> Result<Object> {
        let op = op.ok_or_else(|| missing(path, what))?;
        let name = self.name(path)?;
        let mut file = Object(std::ptr::null_mut());
        // SAFETY: as in `on_path`; the file is an object that the plugin fills in.
        with_status(|status| unsafe { op(&*self.system, name.as_ptr(), &mut file, status) })?;
        Ok(file)
    }

    fn list(&self, op: ListPaths, what: &str, path: &str, name: &CStr) -> Result<Vec<String>> {
        let op = op.ok_or_else(|| missing(path, what))?;
        let mut entries: *mut *mut c_char = std::ptr::null_mut();
        // SAFETY: as in `on_path`; the plugin sets the entries.
        let n = with_status(|s| unsafe { op(&*self.system, name.as_ptr(), &mut entries, s) })?;
        let n = usize::try_from(n).unwrap_or(0);
        if entries.is_null() {
            return Ok(Vec::new());
        }
        let mut texts = Vec::with_capacity(n);
        for i in 0..n {
            // SAFETY: the plugin returned `n` C strings, which it wants to be freed.
            unsafe {
                let entry = *entries.add(i);
                texts.push(CStr::from_ptr(entry).to_string_lossy().into_owned());
                (self.free)(entry.cast());
            }
        }
        // SAFETY: as above.
        unsafe { (self.free)(entries.cast()) };
        Ok(texts)
    }
}

/// A file that is open, until dropped.
struct Open {
    file: Object,
    cleanup: Option<unsafe extern "C" fn(*mut Object)>,
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(cleanup) = self.cleanup {
            // SAFETY: the plugin's function, with its file.
            unsafe { cleanup(&mut self.file) };
        }
    }
}

/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;

impl FileSystem for Plugin {
    fn read(&self, path: &str) -> Result<Vec<u8>> {
        let ops = self
            .read
            .ok_or_else(|| missing(path, "NewRandomAccessFile"))?;
        let read = ops.read.ok_or_else(|| missing(path, "Read"))?;
        let file = self.open(self.ops.new_random_access_file, "NewRandomAccessFile", path)?;
        let open = Open {
            file,
            cleanup: ops.cleanup,
        };
        let mut content = Vec::new();
        loop {
            let at = content.len();
            content.resize(at + CHUNK, 0u8);
            let to = content[at..].as_mut_ptr().cast::<c_char>();
            let mut n = 0;
            // SAFETY: the plugin's function, with its file and room for `CHUNK` bytes.
            let outcome = with_status(|status| unsafe {
                n = read(&open.file, at as u64, CHUNK, to, status);
            });
            let n = usize::try_from(n).unwrap_or(0).min(CHUNK);
            content.truncate(at + n);
            match outcome {
                Ok(()) if n > 0 => {}
                Ok(()) => return Ok(content),
                Err(e) if e.code() == Code::OutOfRange => return Ok(content),
                Err(e) => return Err(e),
            }
        }
    }

    fn write(&self, path: &str, content: &[u8]) -> Result<()> {
        let ops = self.write.ok_or_else(|| missing(path, "NewWritableFile"))?;
        let append = ops.append.ok_or_else(|| missing(path, "Append"))?;
        let file = self.open(self.ops.new_writable_file, "NewWritableFile", path)?;
        let open = Open {
            file,
            cleanup: ops.cleanup,
        };
        if !content.is_empty() {
            let bytes = content.as_ptr().cast::<c_char>();
            // SAFETY: the plugin's function, with its file and the bytes.
            with_status(|s| unsafe { append(&open.file, bytes, content.len(), s) })?;
        }
        match ops.close {
            // SAFETY: as above.
            Some(close) => with_status(|status| unsafe { close(&open.file, status) }),
            None => Ok(()),
        }
    }

    fn stat(&self, path: &str) -> Result<FileInfo> {
        let name = self.name(path)?;
        let system: *const Object = &*self.system;
        if let Some(stat) = self.ops.stat {
            let mut found = TF_FileStatistics {
                length: 0,
                mtime_nsec: 0,
                is_directory: false,
            };
            // SAFETY: the plugin's function, with its object, a C string and a status.
            with_status(|s| unsafe { stat(system, name.as_ptr(), &mut found, s) })?;
            return Ok(FileInfo {
                length: u64::try_from(found.length).unwrap_or(0),
                modified_nanos: found.mtime_nsec,
                is_dir: found.is_directory,
            });
        }
        self.on_path(self.ops.path_exists, "Stat", path)?;
        // The status of a file is an error.
        let is_dir = self.ops.is_directory.is_some_and(|is_directory| {
            // SAFETY: as above.
            let found = with_status(|s| unsafe { is_directory(system, name.as_ptr(), s) });
            found.unwrap_or(false)
        });
        let length = match self.ops.get_file_size {
            // SAFETY: as above.
            Some(size) if !is_dir => with_status(|s| unsafe { size(system, name.as_ptr(), s) })?,
            _ => 0,
        };
        Ok(FileInfo {
            length: u64::try_from(length).unwrap_or(0),
            modified_nanos: 0,
            is_dir,
        })
    }

    fn children(&self, path: &str) -> Result<Vec<String>> {
        let name = self.name(path)?;
        self.list(self.ops.get_children, "GetChildren", path, &name)
    }

    fn matching(&self, pattern: &str) -> Result<Vec<String>> {
        let name = CString::new(pattern);
        let name = name.map_err(|_| invalid_argument!("{pattern:?} has a NUL"))?;
        self.list(
            self.ops.get_matching_paths,
            "GetMatchingPaths",
            pattern,
            &name,
        )
    }

    fn create_dir(&self, path: &str, parents: bool) -> Result<()> {
        if !parents {
            return self.on_path(self.ops.create_dir, "CreateDir", path);
        }
        if self.ops.recursively_create_dir.is_some() {
            return self.on_path(
                self.ops.recursively_create_dir,
                "RecursivelyCreateDir",
                path,
            );
        }
        let host = path.find("://").map_or(0, |at| at + "://".len());
        let ends = path[host..].match_indices('/').skip(1);
        let ends = ends.map(|(at, _)| host + at).chain([path.len()]);
        for folder in ends.map(|end| &path[..end]) {
            match self.create_dir(folder, false) {
                Err(e) if e.code() != Code::AlreadyExists => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    fn remove_file(&self, path: &str) -> Result<()> {
        self.on_path(self.ops.delete_file, "DeleteFile", path)
    }

    fn remove_dir(&self, path: &str) -> Result<()> {
        self.on_path(self.ops.delete_dir, "DeleteDir", path)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let Some(rename) = self.ops.rename_file else {
            let content = self.read(from)?;
            self.write(to, &content)?;
            return self.remove_file(from);
        };
        let (old, new) = (self.name(from)?, self.name(to)?);
        // SAFETY: the plugin's function, with its object, C strings and a status.
        with_status(|s| unsafe { rename(&*self.system, old.as_ptr(), new.as_ptr(), s) })
    }
}

/// Checks that tables have what they must have, and that there is one for each kind of file.
fn check_tables(
    system: &SystemOps,
    read: Option<ReadOps>,
    write: Option<WriteOps>,
    region: Option<RegionOps>,
) -> Result<()> {
    let checks = [
        (system.cleanup.is_some(), "`cleanup` operation"),
        (
            read.is_none_or(|ops| ops.cleanup.is_some()),
            "`cleanup` operation on random access files",
        ),
        (
            write.is_none_or(|ops| ops.cleanup.is_some()),
            "`cleanup` operation on writable files",
        ),
        (
            region.is_none_or(|ops| ops.cleanup.is_some()),
            "`cleanup` operation on read only memory regions",
        ),
        (
            region.is_none_or(|ops| ops.data.is_some()),
            "`data` operation on read only memory regions",
        ),
        (
            region.is_none_or(|ops| ops.length.is_some()),
            "`length` operation on read only memory regions",
        ),
    ];
    if let Some((_, what)) = checks.iter().find(|(good, _)| !good) {
        return Err(failed_precondition!(
            "Trying to register filesystem without {what}"
        ));
    }
    let writes = system.new_writable_file.is_some() || system.new_appendable_file.is_some();
    let regions = system.new_read_only_memory_region_from_file.is_some();
    let promises = [
        (
            system.new_random_access_file.is_some() && read.is_none(),
            "random access files",
        ),
        (writes && write.is_none(), "writable files"),
        (regions && region.is_none(), "readonly memory regions"),
    ];
    if let Some((_, what)) = promises.iter().find(|(broken, _)| *broken) {
        return Err(failed_precondition!(
            "Filesystem allows creation of {what} but no operations on them have been supplied."
        ));
    }
    Ok(())
}

/// Checks a file system of a plugin, and registers it.
///
/// # Safety
/// The tables are those of a plugin.
unsafe fn register(ops: &PluginOps, free: unsafe extern "C" fn(*mut c_void)) -> Result<()> {
    if ops.scheme.is_null() {
        return Err(invalid_argument!(
            "Attempted to register filesystem with `nullptr` URI scheme"
        ));
    }
    // SAFETY: as this function's.
    let (system, read, write, region) = unsafe {
        (
            ops.system.checked("filesystem")?,
            ops.read.checked("random access file")?,
            ops.write.checked("writable file")?,
            ops.region.checked("read only memory region")?,
        )
    };
    let without = |what: &str| failed_precondition!("Trying to register filesystem without {what}");
    let system = system.ok_or_else(|| without("operations"))?;
    let init = system.init.ok_or_else(|| without("`init` operation"))?;
    check_tables(&system, read, write, region)?;
    let mut object = Box::new(Object(std::ptr::null_mut()));
    // SAFETY: the plugin's function, with an object to fill in.
    with_status(|status| unsafe { init(&mut *object, status) })?;
    // SAFETY: not NULL: a C string of the plugin.
    let scheme = unsafe { CStr::from_ptr(ops.scheme) }.to_string_lossy();
    let plugin = Plugin {
        system: object,
        ops: system,
        read,
        write,
        free,
    };
    register_file_system(&scheme, Arc::new(plugin))
}

/// Loads a library with file systems and registers them by their schemes; the library stays loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_RegisterFilesystemPlugin(
    plugin_filename: *const c_char,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let name = unsafe { text(plugin_filename) }?;
        // SAFETY: the client asks to run the library's initializers.
        let library = unsafe { libloading::Library::new(name) };
        let library = library.map_err(|e| not_loaded(name, &e))?;
        let library = std::mem::ManuallyDrop::new(library);
        type Init = unsafe extern "C" fn(*mut PluginInfo);
        // SAFETY: plugins define the function with this type.
        let init = unsafe { library.get::<Init>(b"TF_InitPlugin\0") };
        let init = init.map_err(|e| not_found!("{name}: {e}"))?;
        let mut info = PluginInfo {
            num_schemes: 0,
            ops: std::ptr::null_mut(),
            allocate: None,
            free: None,
        };
        // SAFETY: as above.
        unsafe { init(&mut info) };
        let lacks = |what: &str| {
            failed_precondition!("Cannot load filesystem plugin which does not provide `{what}`")
        };
        info.allocate
            .ok_or_else(|| lacks("plugin_memory_allocate"))?;
        let free = info.free.ok_or_else(|| lacks("plugin_memory_free"))?;
        let mut outcome = Ok(());
        let n = if info.ops.is_null() {
            0
        } else {
            info.num_schemes
        };
        for i in 0..n {
            // SAFETY: the plugin says that it has as many; its memory is freed after its use.
            unsafe {
                let ops = &*info.ops.add(i);
                outcome = outcome.and(register(ops, free));
                let tables = [
                    ops.scheme.cast::<c_void>(),
                    ops.system.ops.cast(),
                    ops.read.ops.cast(),
                    ops.write.ops.cast(),
                    ops.region.ops.cast(),
                ];
                tables.into_iter().for_each(|table| free(table));
            }
        }
        // SAFETY: as above.
        unsafe { free(info.ops.cast()) };
        outcome
    });
}

#[cfg(test)]
mod tests {
    use super::clean;

    #[test]
    fn names_within_a_file_system() {
        let rows = [
            ("mem://a/b//c", "/b/c"),
            ("mem://a", "/"),
            ("mem:///x/../y/.", "/y"),
        ];
        for (uri, path) in rows {
            assert_eq!(clean(uri), path, "{uri}");
        }
    }
}
