//! Temporary folders.

use std::path::PathBuf;

/// A temporary folder, removed when dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    /// Creates an empty folder; `what` must be unique among the tests of the process.
    pub fn new(what: &str) -> Folder {
        let name = format!("ferroflow-{}-{what}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("writable");
        Folder(path)
    }

    /// Returns the path of an entry.
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
