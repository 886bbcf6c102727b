//! Hints for the user: right SQL whose answer is likely not what was meant.

use crate::ast::{self, Expr, Select, Visit, unquote, walk};

/// Columns whose values mean something on their own host only.
const LOCAL_IDS: &[&str] = &["pid", "tid", "next_pid", "cgroup_id"];

/// Notes about a question that joins rows of different nodes.
pub(crate) fn across_nodes(select: &Select) -> Vec<String> {
    let mut find = LocalJoins { names: Vec::new(), on_node: false };
    find.select(select);
    if find.on_node {
        return Vec::new();
    }
    find.names
        .iter()
        .map(|name| {
            format!("{name} is compared across nodes, where it means nothing: add a.node = b.node to the join if rows of one node are meant")
        })
        .collect()
}

struct LocalJoins {
    names: Vec<String>,
    /// Some condition compares nodes: the user has thought of it.
    on_node: bool,
}

impl LocalJoins {
    fn local(&mut self, name: &str) {
        let name = unquote(name).to_ascii_lowercase();
        if LOCAL_IDS.contains(&name.as_str()) && !self.names.contains(&name) {
            self.names.push(name);
        }
    }
}

impl Visit for LocalJoins {
    fn query(&mut self, node: &ast::Query) {
        for join in node.from.iter().flat_map(|from| &from.joins) {
            join.using.iter().for_each(|name| self.local(name));
            self.on_node |= join.using.iter().any(|name| is_node(name));
        }
        walk::query(self, node);
    }

    fn expr(&mut self, node: &Expr) {
        if let Expr::Binary(a, "=" | "IS", b) = node
            && let (Expr::Column { table: a_table, name: a }, Expr::Column { table: b_table, name: b }) =
                (a.peeled(), b.peeled())
        {
            self.on_node |= is_node(a) && is_node(b);
            if a_table != b_table && same_local(a, b) {
                self.local(a);
            }
        }
        walk::expr(self, node);
    }
}

fn is_node(name: &str) -> bool {
    matches!(unquote(name).to_ascii_lowercase().as_str(), "node" | "mesh_node")
}

/// Whether both are process-local ids (a pid may be compared with a next_pid).
fn same_local(a: &str, b: &str) -> bool {
    [a, b].iter().all(|name| LOCAL_IDS.contains(&unquote(name).to_ascii_lowercase().as_str()))
}
