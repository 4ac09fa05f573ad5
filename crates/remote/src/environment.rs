//! Clusters that a job launcher describes by environment variables: SLURM's `srun` and OpenMPI's `mpirun`
//! (TensorFlow: `tf.distribute.cluster_resolver.SlurmClusterResolver`).

use crate::device::ServerDef;
use ferroflow_base::{Result, invalid_argument, ordered_map};
use std::collections::BTreeMap;

/// Reads an environment variable.
pub type ReadVariable<'a> = &'a dyn Fn(&str) -> Option<String>;

impl ServerDef {
    /// The cluster of a SLURM step or an `mpirun`, whichever the environment describes, with one task for
    /// each process, all of job `job`. Tasks on a machine listen at consecutive ports from `first_port`.
    /// OpenMPI does not tell the names of machines: unless all processes are on one, `hosts` names them, as
    /// `HOST:PROCESSES,…`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the variables are malformed or contradict each other, or hosts are missing.
    ///
    /// ```
    /// use ferroflow_remote::ServerDef;
    /// let read = |name: &str| match name {
    ///     "SLURM_STEP_NODELIST" => Some("n[1-2]".to_string()),
    ///     "SLURM_STEP_TASKS_PER_NODE" => Some("2(x2)".to_string()),
    ///     "SLURM_PROCID" => Some("3".to_string()),
    ///     _ => None,
    /// };
    /// let def = ServerDef::from_launcher(&read, "worker", 8888, None).unwrap().unwrap();
    /// assert_eq!(def.address().unwrap(), "n2:8889");
    /// ```
    pub fn from_launcher(
        read: ReadVariable,
        job: &str,
        first_port: u16,
        hosts: Option<&str>,
    ) -> Result<Option<ServerDef>> {
        let number = |name: &str, text: String| -> Result<u32> {
            let number = text.trim().parse();
            number.map_err(|_| invalid_argument!("{name}='{text}' is not a number"))
        };
        let slurm = read("SLURM_STEP_NODELIST").zip(read("SLURM_PROCID"));
        let (hosts, rank) = if let Some((nodes, rank)) = slurm {
            let name = "SLURM_STEP_TASKS_PER_NODE";
            let counts = read(name).ok_or_else(|| invalid_argument!("{name} is not set"))?;
            let (nodes, counts) = (expand_hosts(&nodes)?, expand_counts(&counts)?);
            if nodes.len() != counts.len() {
                return Err(invalid_argument!(
                    "SLURM_STEP_NODELIST has {} nodes, {name} has {}",
                    nodes.len(),
                    counts.len()
                ));
            }
            let hosts: Vec<_> = nodes.into_iter().zip(counts).collect();
            (hosts, number("SLURM_PROCID", rank)?)
        } else if let Some(rank) = read("OMPI_COMM_WORLD_RANK") {
            let (all, local) = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE");
            let size = |name: &str| {
                let text = read(name).ok_or_else(|| invalid_argument!("{name} is not set"))?;
                number(name, text)
            };
            let n = size(all)?;
            let hosts = match hosts {
                Some(hosts) => mpi_hosts(hosts, n)?,
                None if size(local)? == n => vec![("127.0.0.1".to_string(), n)],
                None => {
                    return Err(invalid_argument!(
                        "{n} processes of mpirun run on several machines; name these with --hosts \
                         HOST:PROCESSES,…, in the order of ranks"
                    ));
                }
            };
            (hosts, number("OMPI_COMM_WORLD_RANK", rank)?)
        } else {
            return Ok(None);
        };
        let mut tasks = BTreeMap::new();
        for (host, n) in hosts {
            for i in 0..n {
                let port = u32::from(first_port) + i;
                if port > u32::from(u16::MAX) || tasks.len() >= MAX_TASKS {
                    return Err(invalid_argument!("{n} tasks of {host} need too many ports"));
                }
                tasks.insert(tasks.len() as u32, format!("{host}:{port}"));
            }
        }
        Self::checked(ordered_map([(job.to_string(), tasks)]), job, rank).map(Some)
    }
}

/// Most tasks that a list may stand for.
const MAX_TASKS: usize = 1 << 20;

/// `HOST:PROCESSES,…` of `all` processes.
fn mpi_hosts(text: &str, all: u32) -> Result<Vec<(String, u32)>> {
    let hosts = text.split(',').map(|host| {
        let (name, n) = host.rsplit_once(':').unwrap_or((host, "1"));
        let n = n.parse();
        let n = n.map_err(|_| invalid_argument!("--hosts: '{host}' is not HOST:PROCESSES"))?;
        Ok((name.to_string(), n))
    });
    let hosts: Vec<(String, u32)> = hosts.collect::<Result<_>>()?;
    let named: u64 = hosts.iter().map(|(_, n)| u64::from(*n)).sum();
    match named == u64::from(all) {
        true => Ok(hosts),
        false => Err(invalid_argument!(
            "--hosts names {named} processes, but mpirun started {all}"
        )),
    }
}

/// `2(x3),1`: SLURM's form of 2, 2, 2, 1.
fn expand_counts(text: &str) -> Result<Vec<u32>> {
    let bad = || invalid_argument!("SLURM_STEP_TASKS_PER_NODE='{text}' is malformed");
    let mut all = Vec::new();
    for part in text.split(',') {
        let (count, times) = match part.trim().split_once("(x") {
            None => (part.trim(), 1),
            Some((count, times)) => {
                let times = times.strip_suffix(')').and_then(|t| t.parse().ok());
                (count, times.ok_or_else(bad)?)
            }
        };
        let count = count.parse().map_err(|_| bad())?;
        if times > MAX_TASKS - all.len() {
            return Err(bad());
        }
        all.resize(all.len() + times, count);
    }
    Ok(all)
}

/// `n[1-3,07],m`: SLURM's form of a list of hosts.
fn expand_hosts(text: &str) -> Result<Vec<String>> {
    let bad = || invalid_argument!("SLURM_STEP_NODELIST='{text}' is malformed");
    let mut all = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = rest.find([',', '[']).unwrap_or(rest.len());
        let (prefix, tail) = rest.split_at(end);
        let Some(ranges) = tail.strip_prefix('[') else {
            all.push(prefix.to_string());
            rest = tail.strip_prefix(',').unwrap_or(tail);
            continue;
        };
        let (ranges, tail) = ranges.split_once(']').ok_or_else(bad)?;
        let end = tail.find(',').unwrap_or(tail.len());
        let (suffix, tail) = tail.split_at(end);
        if suffix.contains('[') {
            return Err(bad());
        }
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let width = first.len();
            let number = |text: &str| text.parse::<usize>().map_err(|_| bad());
            let (first, last) = (number(first)?, number(last)?);
            if last < first || last - first > MAX_TASKS {
                return Err(bad());
            }
            all.extend((first..=last).map(|i| format!("{prefix}{i:0width$}{suffix}")));
        }
        rest = tail.strip_prefix(',').unwrap_or(tail);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the tasks of a cluster and the own one, or the error; variables are separated by spaces.
    fn describe(variables: &str, hosts: Option<&str>) -> String {
        let variables: BTreeMap<&str, &str> = variables
            .split_whitespace()
            .map(|v| v.split_once('=').expect("NAME=VALUE"))
            .collect();
        let read = |name: &str| variables.get(name).map(|v| v.to_string());
        match ServerDef::from_launcher(&read, "w", 7000, hosts) {
            Ok(None) => "no launcher".to_string(),
            Ok(Some(def)) => {
                let tasks: Vec<&str> = def.cluster["w"].values().map(String::as_str).collect();
                format!("{} of {}", def.task.index, tasks.join(" "))
            }
            Err(e) => e.message().to_string(),
        }
    }

    #[test]
    fn launchers() {
        let slurm = |nodes: &str, counts: &str, rank: &str| {
            let text = format!(
                "SLURM_STEP_NODELIST={nodes} SLURM_STEP_TASKS_PER_NODE={counts} SLURM_PROCID={rank}"
            );
            describe(&text, None)
        };
        let mpi = |rank: &str, all: &str, local: &str, hosts: Option<&str>| {
            let text = format!(
                "OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE={all} OMPI_COMM_WORLD_LOCAL_SIZE={local}"
            );
            describe(&text, hosts)
        };
        for (got, expect) in [
            (describe("HOME=/", None), "no launcher"),
            (
                slurm("a[09-10].x,b", "2,1(x2)", "3"),
                "3 of a09.x:7000 a09.x:7001 a10.x:7000 b:7000",
            ),
            (slurm("n1", "1", "0"), "0 of n1:7000"),
            (
                slurm("n[1-2]", "1", "0"),
                "SLURM_STEP_NODELIST has 2 nodes, SLURM_STEP_TASKS_PER_NODE has 1",
            ),
            (
                slurm("n[1-", "1", "0"),
                "SLURM_STEP_NODELIST='n[1-' is malformed",
            ),
            (
                slurm("n", "1(x99999999999)", "0"),
                "SLURM_STEP_TASKS_PER_NODE='1(x99999999999)' is malformed",
            ),
            (slurm("n", "1", "x"), "SLURM_PROCID='x' is not a number"),
            (
                mpi("2", "3", "3", None),
                "2 of 127.0.0.1:7000 127.0.0.1:7001 127.0.0.1:7002",
            ),
            (
                mpi("2", "3", "2", Some("a:2,b")),
                "2 of a:7000 a:7001 b:7000",
            ),
        ] {
            assert_eq!(got, expect);
        }
        let missing = mpi("2", "3", "2", None);
        assert!(missing.contains("name these with --hosts"), "{missing}");
        let absent = slurm("n", "1", "5");
        assert!(absent.contains("5"), "{absent}");
    }
}
