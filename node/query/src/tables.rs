//! Which tables and views can be asked for, for those who type questions.

use std::time::Instant;

use model::TableSeen;
use query_planner::ColumnMeta;

use crate::coordinator::Coordinator;

/// The tables of all nodes that may be alive, and the views that agents add to them (without
/// columns), by name. Tables of packed rows are left out.
///
/// # Errors
/// No node's tables can be read.
pub async fn tables(shared: &Coordinator, deadline: Instant) -> Result<Vec<TableSeen>, String> {
    let list = shared.gossip.list();
    let members: Vec<_> = list.iter().collect();
    let known = shared.catalogs.of_members(&shared.way, &members, deadline).await?;
    let column =
        |column: &query_planner::Column| ColumnMeta { name: column.name.clone(), decl_type: column.decl_type.clone() };
    let of_nodes = known
        .catalog
        .tables
        .values()
        .map(|table| TableSeen { name: table.name.clone(), columns: table.columns.iter().map(column).collect() });
    // Of what no node has a view makes nothing.
    let makes_something = |sql: &str| {
        let sql = sql.to_ascii_lowercase();
        known.catalog.tables.keys().any(|table| sql.contains(&format!("from {table} ")))
    };
    let views = shared.views.iter();
    let views = views.filter(|view| !known.catalog.tables.contains_key(view.name) && makes_something(view.sql));
    let views = views.map(|view| TableSeen { name: view.name.to_owned(), columns: Vec::new() });
    let mut all: Vec<TableSeen> = of_nodes.chain(views).collect();
    all.retain(|table| !store::OWN_TABLES.contains(&table.name.as_str()));
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}
