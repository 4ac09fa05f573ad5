//! `ferroflow ops`.

use crate::out::say;
use ferroflow_base::not_found;
use ferroflow_runtime::{Result, registry};
use serde_json::{Map, json};

/// Lists the supported ops: name, group, gradient, and the dtypes of each type attr.
#[derive(clap::Args)]
pub struct Args {
    /// Only these ops.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Prints one JSON object per op, with its source file.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let missing = args.names.iter().find(|n| registry().op(n).is_none());
    if let Some(name) = missing {
        return Err(not_found!("op '{name}' is not supported"));
    }
    for op in registry().sorted() {
        let name = op.op.name;
        if !args.names.is_empty() && !args.names.iter().any(|n| n == name) {
            continue;
        }
        let dtypes = op.dtypes()?;
        if args.json {
            let dtypes = dtypes.into_iter().map(|(attr, names)| (attr, json!(names)));
            let dtypes: Map<_, _> = dtypes.collect();
            say!(
                "{}",
                json!({"name": name, "group": op.group, "file": op.path(), "gradient": op.gradient(), "dtypes": dtypes})
            );
            continue;
        }
        let dtypes = dtypes.iter().map(|(attr, names)| match names.is_empty() {
            true => format!("{attr}=any"),
            false => format!("{attr}={}", names.join(",")),
        });
        let dtypes: Vec<String> = dtypes.collect();
        let line = format!(
            "{name:<32} {:<12} {:<18} {}",
            op.group,
            op.gradient(),
            dtypes.join("; ")
        );
        say!("{}", line.trim_end());
    }
    Ok(())
}
