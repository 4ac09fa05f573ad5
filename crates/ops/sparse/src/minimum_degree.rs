//! The approximate minimum degree ordering of a symmetric sparse matrix: P. R. Amestoy, T. A. Davis,
//! I. S. Duff, "An approximate minimum degree ordering algorithm" (SIAM J. Matrix Anal. Appl. 17,
//! 1996), with the ties of T. A. Davis, "Direct Methods for Sparse Linear Systems", chapter 7.
//!
//! The quotient graph has a vertex for each row. A *variable* has not been eliminated; an *element*
//! stands for the clique of variables that the elimination of its pivot left. Variables with the
//! same neighbours are merged, and elements that another one covers are absorbed.

/// No vertex.
const NONE: usize = usize::MAX;

/// What a vertex is.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A variable; the number of elements at the front of its list.
    Variable(usize),
    /// A pivot that was eliminated.
    Element,
    /// Merged into another vertex.
    Merged,
}

struct Graph {
    n: usize,
    kind: Vec<Kind>,
    /// The elements, then the variables next to a variable; the variables of an element.
    list: Vec<Vec<usize>>,
    /// The number of rows that a vertex stands for; negative while it is in the pivot's element.
    weight: Vec<isize>,
    degree: Vec<usize>,
    /// The vertex that one was merged into or absorbed by.
    parent: Vec<usize>,
    /// Work space: stamps of vertices, 0 for dead elements.
    stamp: Vec<usize>,
    mark: usize,
    /// Lists of variables by degree, the latest first.
    head: Vec<usize>,
    next: Vec<usize>,
    last: Vec<usize>,
    eliminated: usize,
}

/// Returns the order in which rows are eliminated, given the columns of each row of the whole
/// symmetric pattern with its diagonal.
pub(crate) fn minimum_degree(pattern: Vec<Vec<usize>>) -> Vec<usize> {
    let n = pattern.len();
    let mut graph = Graph::new(pattern);
    let mut least = 0;
    while graph.eliminated < n {
        while graph.head.get(least).is_some_and(|&v| v == NONE) {
            least += 1;
        }
        let Some(&pivot) = graph.head.get(least) else {
            break;
        };
        least = least.min(graph.eliminate(pivot));
    }
    graph.postorder()
}

impl Graph {
    fn new(pattern: Vec<Vec<usize>>) -> Graph {
        let n = pattern.len();
        let dense = (10.0 * (n as f64).sqrt()) as usize;
        let dense = dense.max(16).min(n.saturating_sub(2));
        let degree: Vec<usize> = pattern.iter().map(Vec::len).collect();
        let has_diagonal: Vec<bool> = pattern
            .iter()
            .enumerate()
            .map(|(i, row)| row.contains(&i))
            .collect();
        let mut graph = Graph {
            n,
            kind: vec![Kind::Variable(0); n + 1],
            list: pattern,
            weight: vec![1; n + 1],
            degree,
            parent: vec![NONE; n + 1],
            stamp: vec![1; n + 1],
            mark: 2,
            head: vec![NONE; n + 1],
            next: vec![NONE; n + 1],
            last: vec![NONE; n + 1],
            eliminated: 0,
        };
        for (i, has_diagonal) in has_diagonal.iter().enumerate().take(n) {
            let degree = graph.degree[i];
            if degree == 1 && *has_diagonal {
                graph.kind[i] = Kind::Element;
                graph.list[i].clear();
                graph.eliminated += 1;
                graph.stamp[i] = 0;
            } else if degree > dense || !has_diagonal {
                graph.weight[i] = 0;
                graph.kind[i] = Kind::Merged;
                graph.eliminated += 1;
                graph.parent[i] = n;
                graph.weight[n] += 1;
            } else {
                graph.insert(i, degree);
            }
        }
        graph.kind[n] = Kind::Element;
        graph.stamp[n] = 0;
        graph
    }

    /// Puts a variable in front of the list of its degree.
    fn insert(&mut self, i: usize, degree: usize) {
        let head = self.head[degree];
        if head != NONE {
            self.last[head] = i;
        }
        self.next[i] = head;
        self.last[i] = NONE;
        self.head[degree] = i;
    }

    /// Takes a variable out of the list of its degree.
    fn remove(&mut self, i: usize) {
        let (next, last) = (self.next[i], self.last[i]);
        if next != NONE {
            self.last[next] = last;
        }
        match last {
            NONE => self.head[self.degree[i]] = next,
            last => self.next[last] = next,
        }
    }

    fn n_elements(&self, i: usize) -> usize {
        match self.kind[i] {
            Kind::Variable(n) => n,
            _ => 0,
        }
    }

    /// Eliminates a variable; returns the least degree of those next to it.
    fn eliminate(&mut self, pivot: usize) -> usize {
        self.remove(pivot);
        let mut weight = self.weight[pivot];
        self.eliminated += weight as usize;
        let (mut clique, mut degree) = self.gather(pivot);
        self.measure(&clique);
        let buckets = self.update(pivot, &clique, &mut weight, &mut degree);
        self.degree[pivot] = degree;
        self.mark += self.n + 1;
        self.merge_alike(&clique, buckets);
        let mut least = self.n;
        clique.retain(|&i| {
            let own = -self.weight[i];
            if own <= 0 {
                return false;
            }
            self.weight[i] = own;
            let own = own as usize;
            let reached = self.degree[i] + degree - own;
            let reached = reached.min((self.n - self.eliminated).saturating_sub(own));
            self.insert(i, reached);
            self.degree[i] = reached;
            least = least.min(reached);
            true
        });
        self.weight[pivot] = weight;
        if clique.is_empty() {
            self.stamp[pivot] = 0;
        }
        self.list[pivot] = clique;
        least
    }

    /// Makes the pivot an element; returns its variables and their weight.
    fn gather(&mut self, pivot: usize) -> (Vec<usize>, usize) {
        let n_elements = self.n_elements(pivot);
        let own = std::mem::take(&mut self.list[pivot]);
        self.weight[pivot] = -self.weight[pivot];
        let (mut clique, mut degree) = (Vec::new(), 0);
        let (elements, variables) = own.split_at(n_elements.min(own.len()));
        for &e in elements {
            let covered = std::mem::take(&mut self.list[e]);
            self.join(&covered, &mut clique, &mut degree);
            self.parent[e] = pivot;
            self.stamp[e] = 0;
        }
        self.join(variables, &mut clique, &mut degree);
        self.kind[pivot] = Kind::Element;
        self.degree[pivot] = degree;
        (clique, degree)
    }

    fn join(&mut self, variables: &[usize], clique: &mut Vec<usize>, degree: &mut usize) {
        for &i in variables {
            let weight = self.weight[i];
            if weight > 0 {
                *degree += weight as usize;
                self.weight[i] = -weight;
                clique.push(i);
                self.remove(i);
            }
        }
    }

    /// Stamps each element next to the clique with `mark` and the weight that it has outside.
    fn measure(&mut self, clique: &[usize]) {
        for &i in clique {
            let weight = self.weight[i].unsigned_abs();
            for at in 0..self.n_elements(i) {
                let e = self.list[i][at];
                if self.stamp[e] >= self.mark {
                    self.stamp[e] -= weight;
                } else if self.stamp[e] != 0 {
                    self.stamp[e] = self.degree[e] + self.mark - weight;
                }
            }
        }
    }

    /// Bounds the degrees of the clique's variables and prunes their lists; returns the variables
    /// that stay by a hash of their lists, the latest of each hash first.
    fn update(
        &mut self,
        pivot: usize,
        clique: &[usize],
        weight: &mut isize,
        degree: &mut usize,
    ) -> Vec<(usize, usize)> {
        let mut hashes = Vec::with_capacity(clique.len());
        for &i in clique {
            let old = std::mem::take(&mut self.list[i]);
            let (elements, variables) = old.split_at(self.n_elements(i).min(old.len()));
            let (mut hash, mut bound) = (0usize, 0);
            let mut kept: Vec<usize> = Vec::with_capacity(old.len() + 1);
            for &e in elements {
                match self.stamp[e] {
                    0 => {}
                    stamp if stamp > self.mark => {
                        bound += stamp - self.mark;
                        hash = hash.wrapping_add(e);
                        kept.push(e);
                    }
                    _ => {
                        self.parent[e] = pivot;
                        self.stamp[e] = 0;
                    }
                }
            }
            let mut near: Vec<usize> = Vec::with_capacity(variables.len());
            for &j in variables {
                if self.weight[j] > 0 {
                    bound += self.weight[j] as usize;
                    hash = hash.wrapping_add(j);
                    near.push(j);
                }
            }
            if bound == 0 {
                // The pivot's variables are all that it has: it is eliminated with the pivot.
                self.parent[i] = pivot;
                let own = -self.weight[i];
                *degree -= own as usize;
                *weight += own;
                self.eliminated += own as usize;
                self.weight[i] = 0;
                self.kind[i] = Kind::Merged;
                continue;
            }
            self.degree[i] = self.degree[i].min(bound);
            // The pivot comes first; what it displaces moves to the end of its part.
            let n_elements = kept.len() + 1;
            kept.insert(0, pivot);
            if n_elements > 1 {
                kept[1..].rotate_left(1);
            }
            if !near.is_empty() {
                near.rotate_left(1);
            }
            kept.append(&mut near);
            self.list[i] = kept;
            self.kind[i] = Kind::Variable(n_elements);
            hashes.push((hash % self.n, i));
        }
        hashes
    }

    /// Merges variables of the clique that have the same lists.
    fn merge_alike(&mut self, clique: &[usize], hashes: Vec<(usize, usize)>) {
        let mut buckets: std::collections::HashMap<usize, Vec<usize>> =
            std::collections::HashMap::new();
        let of: std::collections::HashMap<usize, usize> =
            hashes.iter().map(|&(h, i)| (i, h)).collect();
        for (hash, i) in hashes.into_iter().rev() {
            buckets.entry(hash).or_default().push(i);
        }
        for i in clique {
            let Some(mut bucket) = of.get(i).and_then(|hash| buckets.remove(hash)) else {
                continue;
            };
            while bucket.len() > 1 {
                let i = bucket.remove(0);
                self.mark += 1;
                for &v in self.list[i].iter().skip(1) {
                    self.stamp[v] = self.mark;
                }
                bucket.retain(|&j| {
                    let alike = self.kind[i] == self.kind[j]
                        && self.list[i].len() == self.list[j].len()
                        && self.list[j]
                            .iter()
                            .skip(1)
                            .all(|&v| self.stamp[v] == self.mark);
                    if alike {
                        self.parent[j] = i;
                        self.weight[i] += self.weight[j];
                        self.weight[j] = 0;
                        self.kind[j] = Kind::Merged;
                    }
                    !alike
                });
            }
        }
        self.mark += 1;
    }

    /// Returns the rows in postorder of the tree of absorptions.
    fn postorder(&self) -> Vec<usize> {
        let n = self.n;
        let mut child = vec![NONE; n + 1];
        let mut next = vec![NONE; n + 1];
        for merged in [true, false] {
            for v in (0..=n).rev() {
                let parent = self.parent[v];
                if (self.weight[v] <= 0) == merged && parent != NONE {
                    next[v] = child[parent];
                    child[parent] = v;
                }
            }
        }
        let mut order = Vec::with_capacity(n + 1);
        for root in (0..=n).filter(|&v| self.parent[v] == NONE) {
            let mut stack = vec![root];
            while let Some(&v) = stack.last() {
                match child[v] {
                    NONE => {
                        order.push(v);
                        stack.pop();
                    }
                    c => {
                        child[v] = next[c];
                        stack.push(c);
                    }
                }
            }
        }
        order.retain(|&v| v < n);
        order
    }
}
