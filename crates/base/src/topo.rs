//! Topological order.

/// Sorts nodes so that each follows its predecessors (Kahn's algorithm).
///
/// `pending` has the number of edges into each node and is counted down; `successors` returns the
/// nodes that a node has edges to, once for each edge. Nodes that become ready together keep their
/// order in `nodes`. The nodes of a cycle, and their successors, are missing from the result and
/// keep a positive count.
///
/// ```
/// use ferroflow_base::topological_order;
/// // 2 → 0 → 1
/// let edges = [vec![1], vec![], vec![0]];
/// let order = topological_order(0..3, &mut [1, 1, 0], |n| edges[n].iter().copied());
/// assert_eq!(order, [2, 0, 1]);
/// ```
pub fn topological_order<S: IntoIterator<Item = usize>>(
    nodes: impl IntoIterator<Item = usize>,
    pending: &mut [u32],
    successors: impl Fn(usize) -> S,
) -> Vec<usize> {
    let mut order: Vec<usize> = nodes.into_iter().filter(|n| pending[*n] == 0).collect();
    let mut next = 0;
    while let Some(&node) = order.get(next) {
        next += 1;
        for successor in successors(node) {
            let left = &mut pending[successor];
            *left -= 1;
            if *left == 0 {
                order.push(successor);
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::topological_order;

    fn check(edges: &[(usize, usize)], n: usize, want: &[usize]) {
        let mut pending = vec![0; n];
        edges.iter().for_each(|(_, to)| pending[*to] += 1);
        let of = |from| edges.iter().filter(move |e| e.0 == from).map(|e| e.1);
        assert_eq!(topological_order(0..n, &mut pending, of), want, "{edges:?}");
    }

    #[test]
    fn orders() {
        check(&[], 0, &[]);
        check(&[], 3, &[0, 1, 2]);
        check(&[(2, 0), (0, 1)], 3, &[2, 0, 1]);
        check(&[(0, 2), (0, 2), (1, 2)], 3, &[0, 1, 2]);
        check(&[(0, 1), (1, 2), (2, 1)], 3, &[0]);
        check(&[(0, 0)], 1, &[]);
    }
}
