//! [`KeyValueStore`]: values that tasks share by key.

use ferroflow_base::{Result, already_exists, not_found};
use std::collections::{BTreeMap, HashMap};
use tokio::sync::oneshot;

/// Values by normalized key.
#[derive(Default)]
pub(super) struct KeyValueStore {
    values: BTreeMap<String, Vec<u8>>,
    waiting: HashMap<String, Vec<oneshot::Sender<Vec<u8>>>>,
}

/// A key without leading, trailing and repeated slashes.
fn normalize(key: &str) -> String {
    let parts: Vec<&str> = key.split('/').filter(|p| !p.is_empty()).collect();
    parts.join("/")
}

impl KeyValueStore {
    /// # Errors
    /// ALREADY_EXISTS if the key has a value that must not be replaced.
    pub(super) fn insert(&mut self, key: &str, value: Vec<u8>, may_replace: bool) -> Result<()> {
        let normal = normalize(key);
        if !may_replace && self.values.contains_key(&normal) {
            return Err(already_exists!("Config key {normal} already exists."));
        }
        for waiting in self.waiting.remove(&normal).unwrap_or_default() {
            // The task may have hung up.
            let _ = waiting.send(value.clone());
        }
        self.values.insert(normal, value);
        Ok(())
    }

    /// The value of a key, now or when it is inserted.
    pub(super) fn get(&mut self, key: &str) -> oneshot::Receiver<Vec<u8>> {
        let (sender, receiver) = oneshot::channel();
        let normal = normalize(key);
        match self.values.get(&normal) {
            Some(value) => {
                // The receiver is here.
                let _ = sender.send(value.clone());
            }
            None => {
                let waiting = self.waiting.entry(normal).or_default();
                waiting.retain(|w| !w.is_closed());
                waiting.push(sender);
            }
        }
        receiver
    }

    /// # Errors
    /// NOT_FOUND if the key has no value.
    pub(super) fn try_get(&self, key: &str) -> Result<Vec<u8>> {
        let value = self.values.get(&normalize(key)).cloned();
        value.ok_or_else(|| not_found!("Config key {key} not found."))
    }

    /// The values of the keys below a directory.
    pub(super) fn directory(&self, key: &str) -> Vec<(String, Vec<u8>)> {
        let prefix = format!("{}/", normalize(key));
        let from = self.values.range(prefix.clone()..);
        let inside = from.take_while(|(key, _)| key.starts_with(&prefix));
        inside.map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    /// Removes a key, and those below it.
    pub(super) fn delete(&mut self, key: &str) {
        let normal = normalize(key);
        let prefix = format!("{normal}/");
        self.values
            .retain(|key, _| *key != normal && !key.starts_with(&prefix));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_paths() -> Result<()> {
        let mut store = KeyValueStore::default();
        let mut early = store.get("a/b");
        store.insert("//a///b/", b"1".to_vec(), false)?;
        assert_eq!(early.try_recv().ok().as_deref(), Some(&b"1"[..]));
        let again = store.insert("a/b", b"2".to_vec(), false);
        let error = again.expect_err("the key has a value").to_string();
        assert_eq!(error, "ALREADY_EXISTS: Config key a/b already exists.");
        store.insert("a/b", b"2".to_vec(), true)?;
        store.insert("a/c/d", b"3".to_vec(), false)?;
        store.insert("ab", b"4".to_vec(), false)?;
        assert_eq!(store.try_get("/a/b")?, b"2");
        let inside = store.directory("a").into_iter().map(|(key, _)| key);
        assert_eq!(inside.collect::<Vec<_>>(), ["a/b", "a/c/d"]);
        store.delete("a");
        let missing = store.try_get("a/c/d").expect_err("it is deleted");
        assert_eq!(
            missing.to_string(),
            "NOT_FOUND: Config key a/c/d not found."
        );
        assert_eq!(store.try_get("ab")?, b"4");
        Ok(())
    }
}
