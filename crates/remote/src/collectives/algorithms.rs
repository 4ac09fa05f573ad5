//! The algorithms of collectives (TensorFlow: `ring_reducer.cc`, `ring_gatherer.cc`,
//! `hierarchical_tree_broadcaster.cc` and `all_to_all.cc` in `core/common_runtime`): members of other
//! servers run the same, so chunks, order and keys are theirs.

use super::groups::Group;
use super::transfer::Transfer;
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_runtime::{FinishFn, MergeFn};
use ferroflow_tensor::rows::{joined, rows};
use ferroflow_tensor::{DType, Shape, Tensor};
use std::sync::Arc;
use tokio::task::JoinSet;

/// Chunks begin at multiples of this many bytes.
const ALIGNMENT: usize = 64;
/// More rings are used if chunks were larger than this.
const MAX_CHUNK: usize = 4 << 20;
/// Most rings per device by default.
const MAX_RINGS_PER_DEVICE: usize = 2;
/// Chunks up to this size are merged on the calling thread.
const SHORT_MERGE: usize = 1 << 16;

/// The order of the members in each ring, by offset: within each task, the devices are rotated by it,
/// in reverse if it is negative.
pub(crate) fn rings(devices_per_task: &[usize], offsets: &[i64]) -> Vec<Vec<usize>> {
    let ring = |offset: &i64| {
        let (mut order, mut first) = (Vec::new(), 0);
        for &n in devices_per_task {
            for i in 0..n {
                let at = (i + offset.unsigned_abs() as usize % n) % n;
                order.push(first + if *offset < 0 { n - 1 - at } else { at });
            }
            first += n;
        }
        order
    };
    offsets.iter().map(ring).collect()
}

/// The offsets of a reduction of `bytes` bytes that names none.
pub(crate) fn ring_offsets(group: &Group, bytes: usize, max_rings: i64) -> Vec<i64> {
    if max_rings == -1 {
        return vec![0];
    }
    let (size, tasks) = (group.members.len(), group.devices_per_task().len());
    let per_task = size / tasks.max(1);
    let limit = usize::try_from(max_rings).ok().filter(|n| *n > 0);
    let limit = limit.unwrap_or(MAX_RINGS_PER_DEVICE) * per_task;
    let mut n = 1;
    while bytes / (size * n) > MAX_CHUNK && n < limit {
        n += 1;
    }
    let stride = (per_task / n).max(1) as i64;
    let offset = |i: i64| if i % 2 == 1 { -stride * i } else { stride * i };
    (0..n as i64).map(offset).collect()
}

/// The elements of each of `n` chunks of a tensor that is reduced; the last ones may be empty.
fn aligned_chunks(dtype: DType, total: usize, n: usize) -> Vec<(usize, usize)> {
    let size = dtype.size().max(1);
    let mut chunk = total.div_ceil(n);
    // A multiple gets one more block.
    chunk += (ALIGNMENT - chunk * size % ALIGNMENT) / size;
    let at = |i: usize| (chunk * i).min(total);
    (0..n).map(|i| (at(i), at(i + 1))).collect()
}

/// One chunk on its way through a ring.
struct Field {
    /// Number of the chunk among those of its ring.
    chunk: usize,
    /// Number of the chunk among all.
    section: usize,
    /// The place of this member in the ring.
    rank: usize,
    /// The order of the members.
    ring: Arc<Vec<usize>>,
}

impl Field {
    /// The place of the member `before` places earlier than chunk's first one.
    fn back(&self, before: usize) -> usize {
        (self.chunk + self.ring.len() - before) % self.ring.len()
    }

    async fn recv(&self, via: &Transfer, pass: u8, n: usize) -> Result<Tensor> {
        let from = (self.rank + self.ring.len() - 1) % self.ring.len();
        let key = format!("{}:{pass}:{}:{from}", via.key, self.section);
        via.recv(self.ring[from], &key, n).await
    }

    async fn send(&self, via: &Transfer, pass: u8, value: &Tensor) -> Result<()> {
        let to = (self.rank + 1) % self.ring.len();
        let key = format!("{}:{pass}:{}:{}", via.key, self.section, self.rank);
        via.send(self.ring[to], &key, value.clone()).await
    }

    /// Merges the chunk of all members, then passes the result round.
    async fn reduce(
        &self,
        via: &Transfer,
        mut value: Tensor,
        merge: &MergeFn,
        finish: Option<&FinishFn>,
    ) -> Result<Tensor> {
        let (n, size) = (value.num_elements(), self.ring.len());
        if n == 0 {
            return Ok(value);
        }
        if self.rank != self.chunk {
            let part = self.recv(via, 0, n).await?;
            let finish = finish.filter(|_| self.rank == self.back(1)).cloned();
            value = merged(value, part, merge.clone(), finish, size).await?;
        }
        if self.rank != self.back(1) {
            self.send(via, 0, &value).await?;
            value = self.recv(via, 1, n).await?;
        }
        if self.rank != self.back(2) {
            self.send(via, 1, &value).await?;
        }
        Ok(value)
    }

    /// Passes the chunk of its member round.
    async fn gather(&self, via: &Transfer, own: Tensor) -> Result<Tensor> {
        let n = own.num_elements();
        if n == 0 {
            return Ok(own);
        }
        let value = match self.rank == self.chunk {
            true => own,
            false => self.recv(via, 0, n).await?,
        };
        if self.rank != self.back(1) {
            self.send(via, 0, &value).await?;
        }
        Ok(value)
    }
}

async fn merged(
    mut value: Tensor,
    part: Tensor,
    merge: MergeFn,
    finish: Option<FinishFn>,
    size: usize,
) -> Result<Tensor> {
    let bytes = value.byte_len();
    let work = move || {
        merge(&mut value, &part)?;
        if let Some(finish) = finish {
            finish(&mut value, size)?;
        }
        Ok(value)
    };
    match bytes <= SHORT_MERGE {
        true => work(),
        false => {
            let done = tokio::task::spawn_blocking(work).await;
            done.map_err(|e| internal!("merging failed: {e}"))?
        }
    }
}

/// Runs a future for each chunk and returns their results in order.
async fn all_fields(mut fields: JoinSet<Result<(usize, Tensor)>>) -> Result<Vec<Tensor>> {
    let mut done = Vec::with_capacity(fields.len());
    while let Some(field) = fields.join_next().await {
        done.push(field.map_err(|e| internal!("a collective failed: {e}"))??);
    }
    done.sort_unstable_by_key(|(i, _)| *i);
    Ok(done.into_iter().map(|(_, tensor)| tensor).collect())
}

fn concatenated(dtype: DType, shape: Shape, parts: &[Tensor]) -> Result<Tensor> {
    let parts: Vec<_> = parts.iter().map(|t| (Some(t), t.num_elements())).collect();
    joined(dtype, shape, &parts)
}

/// Reduces the tensors of all members in rings.
pub(crate) async fn reduce(
    via: &Arc<Transfer>,
    input: Tensor,
    merge: &MergeFn,
    finish: Option<&FinishFn>,
    rings: Vec<Vec<usize>>,
) -> Result<Tensor> {
    let (dtype, shape, size) = (
        input.dtype(),
        input.shape().clone(),
        via.group.members.len(),
    );
    if size == 1 || input.num_elements() == 0 {
        return Ok(input);
    }
    let chunks = aligned_chunks(dtype, input.num_elements(), size * rings.len());
    let rings: Vec<_> = rings.into_iter().map(Arc::new).collect();
    let mut fields = JoinSet::new();
    for (section, (start, end)) in chunks.into_iter().enumerate() {
        let ring = &rings[section % rings.len()];
        let place = ring.iter().position(|m| *m == via.rank);
        let field = Field {
            chunk: section / rings.len(),
            section,
            rank: place.ok_or_else(|| internal!("a ring lacks the member {}", via.rank))?,
            ring: ring.clone(),
        };
        let value = input.view(start, Shape::from(&[end - start][..]))?;
        let (via, merge, finish) = (via.clone(), merge.clone(), finish.cloned());
        fields.spawn(async move {
            let value = field.reduce(&via, value, &merge, finish.as_ref()).await?;
            Ok((section, value))
        });
    }
    drop(input);
    concatenated(dtype, shape, &all_fields(fields).await?)
}

/// Concatenates the tensors of all members.
pub(crate) async fn gather(via: &Arc<Transfer>, input: Tensor, shape: Shape) -> Result<Tensor> {
    let (dtype, size) = (input.dtype(), via.group.members.len());
    if shape.num_elements() != input.num_elements() * size {
        return Err(internal!(
            "a part of shape {} does not fit a result of shape {shape}",
            input.shape()
        ));
    }
    let ring = Arc::new((0..size).collect::<Vec<_>>());
    let mut fields = JoinSet::new();
    for chunk in 0..size {
        let field = Field {
            chunk,
            section: chunk,
            rank: via.rank,
            ring: ring.clone(),
        };
        let (via, own) = (via.clone(), input.clone());
        fields.spawn(async move { Ok((chunk, field.gather(&via, own).await?)) });
    }
    concatenated(dtype, shape, &all_fields(fields).await?)
}

/// One broadcast among some members.
struct Tree {
    number: usize,
    members: Vec<usize>,
    /// The place of the source.
    source: usize,
}

/// The broadcasts: first among the tasks, if there are several, then in each task.
fn trees(devices_per_task: &[usize], source: usize) -> Vec<Tree> {
    let (mut between, mut within) = (Vec::new(), Vec::new());
    let (mut first, mut source_task) = (0, 0);
    let several = usize::from(devices_per_task.len() > 1);
    for (task, &n) in devices_per_task.iter().enumerate() {
        let here = first..first + n;
        let has_source = here.contains(&source);
        between.push(if has_source { source } else { first });
        if has_source {
            source_task = task;
        }
        within.push(Tree {
            number: task + several,
            source: if has_source { source - first } else { 0 },
            members: here.collect(),
        });
        first += n;
    }
    let mut trees = Vec::new();
    if several == 1 {
        trees.push(Tree {
            number: 0,
            members: between,
            source: source_task,
        });
    }
    trees.extend(within);
    trees
}

impl Tree {
    /// The place from which the member at `place` receives.
    fn parent(&self, place: usize) -> Option<usize> {
        match (place == self.source, self.source) {
            (true, _) => None,
            (false, 0) => Some((place - 1) / 2),
            (false, source) => Some((place / 2).checked_sub(1).unwrap_or(source)),
        }
    }

    /// The places to which the member at `place` sends. A source that is not the first sends to the
    /// first two in addition, as if it preceded all.
    fn children(&self, place: usize) -> Vec<usize> {
        let n = self.members.len();
        let mut children = Vec::new();
        if place == self.source && self.source != 0 {
            children.extend((0..2).filter(|i| *i < n && *i != self.source));
        }
        let next = match self.source {
            0 => 2 * place + 1,
            _ => 2 * (place + 1),
        };
        children.extend((next..next + 2).filter(|i| *i < n && *i != self.source));
        children
    }
}

/// Returns the tensor of the source, `own` there.
pub(crate) async fn broadcast(
    via: &Arc<Transfer>,
    own: Option<Tensor>,
    source: usize,
    dtype: DType,
    shape: Shape,
) -> Result<Tensor> {
    let mut value = own.filter(|_| via.rank == source);
    for tree in trees(&via.group.devices_per_task(), source) {
        let Some(place) = tree.members.iter().position(|m| *m == via.rank) else {
            continue;
        };
        let key = |from: usize, to: usize| format!("{}:{}:{from}:{to}", via.key, tree.number);
        if let Some(parent) = tree.parent(place) {
            let from = tree.members[parent];
            let received = via
                .recv(from, &key(parent, place), shape.num_elements())
                .await?;
            value = Some(received);
        }
        let mut sends = JoinSet::new();
        for child in tree.children(place) {
            let tensor = value.clone();
            let tensor = tensor.ok_or_else(|| internal!("nothing to broadcast"))?;
            let (via, key) = (via.clone(), key(place, child));
            let to = tree.members[child];
            sends.spawn(async move { via.send(to, &key, tensor).await });
        }
        while let Some(sent) = sends.join_next().await {
            sent.map_err(|e| internal!("a broadcast failed: {e}"))??;
        }
    }
    let value = value.ok_or_else(|| internal!("the broadcast did not reach rank {}", via.rank))?;
    if value.dtype() != dtype {
        return Err(internal!("the broadcast has dtype {}", value.dtype()));
    }
    value.with_shape(shape)
}

/// Sends row `i` to member `i`, and returns the rows from all.
pub(crate) async fn all_to_all(via: &Arc<Transfer>, input: Tensor) -> Result<Tensor> {
    let size = via.group.members.len();
    let first = input.shape().first().copied();
    if first != Some(size) {
        return Err(invalid_argument!(
            "input to all-to-all first dimension size ({}) must be the same as the group size ({size})",
            first.unwrap_or(0)
        ));
    }
    let (dtype, shape) = (input.dtype(), input.shape().clone());
    let parts = rows(&input)?;
    let mut fields = JoinSet::new();
    for (other, row) in parts.into_iter().enumerate() {
        let via = via.clone();
        fields.spawn(async move {
            if other == via.rank || row.num_elements() == 0 {
                return Ok((other, row));
            }
            let n = row.num_elements();
            let sent = format!("{}{}{other}", via.key, via.rank);
            let received = format!("{}{other}{}", via.key, via.rank);
            let (sent, received) =
                tokio::join!(via.send(other, &sent, row), via.recv(other, &received, n));
            sent?;
            Ok((other, received?))
        });
    }
    concatenated(dtype, shape, &all_fields(fields).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_rotate_within_tasks() {
        let all = rings(&[2, 3], &[0, 1, -1]);
        assert_eq!(all[0], [0, 1, 2, 3, 4]);
        assert_eq!(all[1], [1, 0, 3, 4, 2]);
        assert_eq!(all[2], [0, 1, 3, 2, 4]);
    }

    #[test]
    fn chunks_are_aligned_and_cover_all() {
        for (total, n, expected) in [
            // 64 bytes are 16 elements; a multiple gets one more block.
            (10, 2, vec![(0, 10), (10, 10)]),
            (32, 2, vec![(0, 32), (32, 32)]),
            (34, 2, vec![(0, 32), (32, 34)]),
            (100, 3, vec![(0, 48), (48, 96), (96, 100)]),
        ] {
            assert_eq!(aligned_chunks(DType::Float, total, n), expected);
        }
    }

    #[test]
    fn trees_reach_every_member_once() {
        for (tasks, source) in [
            (&[1, 1, 1, 1, 1][..], 0),
            (&[1, 1, 1, 1, 1], 3),
            (&[1, 1], 1),
            (&[4], 2),
            (&[2, 3, 1], 4),
            (&[7], 1),
        ] {
            let n: usize = tasks.iter().sum();
            let mut reached = vec![0; n];
            reached[source] = 1;
            for tree in trees(tasks, source) {
                for place in 0..tree.members.len() {
                    for child in tree.children(place) {
                        assert_eq!(tree.parent(child), Some(place), "{tasks:?} {source}");
                        reached[tree.members[child]] += 1;
                    }
                }
            }
            assert_eq!(reached, vec![1; n], "{tasks:?} from {source}");
        }
    }
}
