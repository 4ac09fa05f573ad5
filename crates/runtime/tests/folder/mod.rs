//! Folders that tests write to.

use std::path::PathBuf;

/// A folder of its own that is removed afterwards.
pub struct Folder(pub PathBuf);

impl Folder {
    /// An empty one; `what` is not used by another test.
    pub fn new(what: &str) -> Folder {
        let name = format!("ferroflow-{}-{what}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("writable");
        Folder(path)
    }

    /// The path of something in it.
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
