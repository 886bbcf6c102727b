//! The graph of who waits for whom.

/// Edges followed to find how many wait for each rank that is named, in all; beyond, only those
/// that wait for it directly count.
const MOST_STEPS: usize = 20_000_000;

/// A vertex: a process, or (from the number of processes on) a point that several processes lead
/// to.
pub(super) type Vertex = usize;

/// Who waits for whom.
pub(super) struct Graph {
    pub(super) vertices: usize,
    /// From who waits to who, or what, is waited for.
    edges: Vec<(Vertex, Vertex)>,
}

impl Graph {
    pub(super) fn new(vertices: usize) -> Self {
        Self { vertices, edges: Vec::new() }
    }

    pub(super) fn vertex(&mut self) -> Vertex {
        self.vertices += 1;
        self.vertices - 1
    }

    pub(super) fn edge(&mut self, from: Vertex, to: Vertex) {
        if from != to {
            self.edges.push((from, to));
        }
    }

    /// By vertex: those that its edges lead to, and those that they come from.
    pub(super) fn neighbours(&self) -> (Vec<Vec<Vertex>>, Vec<Vec<Vertex>>) {
        let (mut leads_to, mut comes_from) = (vec![Vec::new(); self.vertices], vec![Vec::new(); self.vertices]);
        for &(from, to) in &self.edges {
            leads_to[from].push(to);
            comes_from[to].push(from);
        }
        (leads_to, comes_from)
    }
}

/// Follows edges.
pub(super) struct Reach<'a> {
    edges: &'a [Vec<Vertex>],
    /// The visit in which a vertex was seen last.
    seen: Vec<usize>,
    visits: usize,
    steps: usize,
}

impl<'a> Reach<'a> {
    pub(super) fn new(edges: &'a [Vec<Vertex>]) -> Self {
        Self { edges, seen: vec![0; edges.len()], visits: 0, steps: 0 }
    }

    /// Calls `found` once for each vertex that edges lead to from some, directly or through others.
    /// After [`MOST_STEPS`] in all visits no further than one call: only what nobody's job looks
    /// like takes so many.
    pub(super) fn visit(&mut self, from: impl IntoIterator<Item = Vertex>, mut found: impl FnMut(Vertex)) {
        self.visits += 1;
        let mut next: Vec<(Vertex, usize)> = from.into_iter().map(|vertex| (vertex, 0)).collect();
        while let Some((vertex, depth)) = next.pop() {
            if self.steps > MOST_STEPS && depth > 1 {
                continue;
            }
            self.steps += self.edges[vertex].len();
            for &other in &self.edges[vertex] {
                if std::mem::replace(&mut self.seen[other], self.visits) != self.visits {
                    found(other);
                    next.push((other, depth + 1));
                }
            }
        }
    }
}
