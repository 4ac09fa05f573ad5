//! Ordered maps and sets of what an iterator yields, as `collect` makes them.
//!
//! `collect` and `BTreeMap::from` sort the elements first, which is five kilobytes of code for each
//! type; these insert them one by one.

use crate::Result;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the map of these entries; the last of equal keys stays.
///
/// ```
/// let map = ferroflow_base::ordered_map([("b", 1), ("a", 2), ("b", 3)]);
/// assert_eq!(map.into_iter().collect::<Vec<_>>(), [("a", 2), ("b", 3)]);
/// ```
pub fn ordered_map<K: Ord, V>(entries: impl IntoIterator<Item = (K, V)>) -> BTreeMap<K, V> {
    let mut map = BTreeMap::new();
    for (key, value) in entries {
        map.insert(key, value);
    }
    map
}

/// Returns the map of entries that may fail to be computed.
///
/// # Errors
/// The first error of an entry.
pub fn try_ordered_map<K: Ord, V>(
    entries: impl IntoIterator<Item = Result<(K, V)>>,
) -> Result<BTreeMap<K, V>> {
    let mut map = BTreeMap::new();
    for entry in entries {
        let (key, value) = entry?;
        map.insert(key, value);
    }
    Ok(map)
}

/// Returns the set of these elements.
pub fn ordered_set<T: Ord>(elements: impl IntoIterator<Item = T>) -> BTreeSet<T> {
    let mut set = BTreeSet::new();
    for element in elements {
        set.insert(element);
    }
    set
}
