//! Licences and duplicate versions, against `deny.toml`; the part of `cargo deny check` that needs
//! no installation.

use crate::Res;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Checks the packages of `cargo metadata` and `Cargo.lock`.
pub fn check(root: &Path, packages: &[serde_json::Value]) -> Res<Vec<String>> {
    let read = |name: &str| fs::read_to_string(root.join(name)).map_err(|e| format!("{name}: {e}"));
    let deny = read("deny.toml")?;
    let mut offences = licences(&deny, packages);
    offences.extend(duplicates(&deny, &read("Cargo.lock")?));
    Ok(offences)
}

fn licences(deny: &str, packages: &[serde_json::Value]) -> Vec<String> {
    let allowed: BTreeSet<&str> = list(deny, "allow").collect();
    let mut offences = Vec::new();
    for package in packages.iter().filter(|p| !p["source"].is_null()) {
        let name = package["name"].as_str().unwrap_or_default();
        let licence = package["license"].as_str().unwrap_or("none");
        if !is_allowed(licence, &allowed) {
            offences.push(format!(
                "{name}: deny.toml does not allow its licence, {licence}"
            ));
        }
    }
    offences
}

/// Returns the quoted items of the array `name`, on one line or several.
fn list<'a>(toml: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let start = format!("\n{name} = [");
    let items = toml.split_once(&start).map_or("", |(_, rest)| rest);
    let items = items.split_once(']').map_or(items, |(items, _)| items);
    items.split('"').skip(1).step_by(2)
}

/// Evaluates an SPDX expression.
fn is_allowed(licence: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = licence.replace('/', " OR ").replace('(', " ( ");
    let spaced = spaced.replace(')', " ) ");
    let mut tokens = spaced.split_whitespace().peekable();
    let value = either(&mut tokens, allowed);
    value && tokens.peek().is_none()
}

type Tokens<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn either(tokens: &mut Tokens, allowed: &BTreeSet<&str>) -> bool {
    let mut value = both(tokens, allowed);
    while tokens.next_if_eq(&"OR").is_some() {
        value |= both(tokens, allowed);
    }
    value
}

fn both(tokens: &mut Tokens, allowed: &BTreeSet<&str>) -> bool {
    let mut value = one(tokens, allowed);
    while tokens.next_if_eq(&"AND").is_some() {
        value &= one(tokens, allowed);
    }
    value
}

fn one(tokens: &mut Tokens, allowed: &BTreeSet<&str>) -> bool {
    let Some(id) = tokens.next() else {
        return false;
    };
    if id == "(" {
        let value = either(tokens, allowed);
        return tokens.next() == Some(")") && value;
    }
    if tokens.next_if_eq(&"WITH").is_none() {
        return allowed.contains(id);
    }
    let exception = tokens.next().unwrap_or_default();
    allowed.contains(format!("{id} WITH {exception}").as_str())
}

/// Returns packages with several versions in `Cargo.lock`, unless `skip` in deny.toml lists all but
/// one.
fn duplicates(deny: &str, lock: &str) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            let start = format!("\n{name} = \"");
            package.split_once(&start)?.1.split('"').next()
        };
        if let (Some(name), Some(version)) = (field("name"), field("version")) {
            versions.entry(name).or_default().push(version);
        }
    }
    let mut offences = Vec::new();
    let skips = deny.lines().filter_map(|line| {
        let spec = line.trim().strip_prefix("{ crate = \"")?;
        spec.split('"').next()?.split_once('@')
    });
    let matches = |version: &str, wanted: &str| {
        let rest = version.strip_prefix(wanted);
        rest.is_some_and(|r| r.is_empty() || r.starts_with('.'))
    };
    for (name, wanted) in skips {
        let all = versions.get_mut(name);
        let at = all.and_then(|all| {
            let is_duplicate = all.len() > 1;
            let at = all.iter().position(|v| matches(v, wanted));
            at.filter(|_| is_duplicate).map(|at| (all, at))
        });
        match at {
            Some((all, at)) => drop(all.remove(at)),
            None => offences.push(format!("deny.toml skips {name}@{wanted}: not a duplicate")),
        }
    }
    for (name, versions) in versions.iter().filter(|(_, v)| v.len() > 1) {
        let versions = versions.join(" and ");
        offences.push(format!(
            "{name}: versions {versions}, and no reason in deny.toml"
        ));
    }
    offences
}

#[cfg(test)]
mod tests {
    use super::{duplicates, is_allowed};
    use std::collections::BTreeSet;

    #[test]
    fn licences_are_evaluated() {
        let allowed = BTreeSet::from(["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"]);
        for (licence, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("MIT/GPL-3.0", true),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR GPL-3.0) AND ISC", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0", false),
            ("", false),
            ("MIT)", false),
        ] {
            assert_eq!(is_allowed(licence, &allowed), expected, "{licence}");
        }
    }

    #[test]
    fn duplicates_need_a_reason() {
        let package = |version| format!("[[package]]\nname = \"a\"\nversion = \"{version}\"\n");
        let lock = package("1.2.0") + &package("2.0.0");
        let skip = "    { crate = \"a@1.2\", reason = \"b needs it\" },\n";
        assert_eq!(duplicates("", &lock).len(), 1);
        assert_eq!(duplicates(skip, &lock).len(), 0);
        assert_eq!(duplicates(skip, &package("1.2.0")).len(), 1);
    }
}
