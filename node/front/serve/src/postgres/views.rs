//! The types of views' columns, which SQLite does not tell where a view computes them: their SELECTs
//! are looked at as the statements of clients are.

use std::sync::LazyLock;

use front::schema;
use model::TableSeen;
use query_planner::ColumnMeta;

use super::infer;
use super::tokens::{Token, tokens};

/// The views of this release, each name with its SELECT.
static VIEWS: LazyLock<Vec<(String, Vec<Token>)>> = LazyLock::new(|| {
    let of = |(name, sql): (String, String)| Some((name, tokens(&sql).ok()?));
    schema::views().into_iter().filter_map(of).collect()
});

/// Whether this is the name of one.
pub(super) fn is_one(name: &str) -> bool {
    VIEWS.iter().any(|(view, _)| view.eq_ignore_ascii_case(name))
}

/// The types of the tables' columns, by name.
pub(super) fn columns(tables: &[TableSeen]) -> infer::Columns {
    let mut columns = infer::Columns::default();
    for table in tables {
        columns.add(&table.name, "node", "TEXT");
        for column in &table.columns {
            columns.add(&table.name, &column.name, &column.decl_type);
        }
    }
    columns
}

/// The tables, with the types of their views' columns; of views that agents add also the columns.
pub(super) fn told(mut tables: Vec<TableSeen>) -> Vec<TableSeen> {
    let known = columns(&tables);
    for (view, select) in VIEWS.iter() {
        let Some(table) = tables.iter_mut().find(|table| table.name.eq_ignore_ascii_case(view)) else { continue };
        let names = infer::names(select);
        let Some(kinds) = infer::results(select, &known) else { continue };
        if table.columns.is_empty() {
            let column = |name: &String| ColumnMeta { name: name.clone(), decl_type: String::new() };
            table.columns = names.iter().filter(|name| *name != "node").map(column).collect();
        }
        for column in &mut table.columns {
            let at = names.iter().position(|name| *name == column.name);
            // (What SQLite says of it is BLOB where its values may be of several types.)
            let told = at.and_then(|at| kinds.get(at).copied().flatten());
            if let Some(kind) = told {
                kind.name().clone_into(&mut column.decl_type);
            } else if column.decl_type == "BLOB" {
                column.decl_type.clear();
            }
        }
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Vec<TableSeen> {
        let tables = schema::DOCUMENTED.iter().map(|table| {
            // (Agents name no columns of the views that they add.)
            let columns = table.columns.iter().filter(|_| table.kind != schema::OF_MESH);
            let columns =
                columns.map(|column| ColumnMeta { name: column.name.clone(), decl_type: column.decl_type.clone() });
            TableSeen { name: table.name.clone(), columns: columns.collect() }
        });
        told(tables.collect())
    }

    #[test]
    fn each_column_of_a_view_has_a_type() {
        let tables = seen();
        let of = |view: &str| {
            let table = tables.iter().find(|table| table.name == view).unwrap();
            table.columns.iter().map(|column| format!("{} {}", column.name, column.decl_type)).collect::<Vec<_>>()
        };
        assert_eq!(
            of("events"),
            [
                "id TEXT",
                "timestamp INTEGER",
                "pid INTEGER",
                "tid INTEGER",
                "source INTEGER",
                "op INTEGER",
                "duration INTEGER",
                "gpu_id ", // NULL
                "arg0 INTEGER",
                "arg1 INTEGER",
                "ret_code INTEGER",
                "stack_hash INTEGER",
                "rank INTEGER",
                "local_rank INTEGER",
                "world_size INTEGER",
                "cgroup_id INTEGER"
            ]
        );
        for (view, _) in VIEWS.iter() {
            let columns = of(view);
            assert!(
                columns.len() > 5 && columns.iter().all(|column| !column.ends_with(' ') || column == "gpu_id "),
                "{view}: {columns:?}"
            );
        }
        for table in schema::DOCUMENTED.iter().filter(|table| table.kind == schema::OF_MESH) {
            let documented = table.columns.iter().map(|column| column.name.as_str());
            let documented: Vec<&str> = documented.filter(|name| *name != "node").collect(); // of each table
            let columns = of(&table.name);
            let columns: Vec<&str> = columns.iter().map(|column| column.split(' ').next().unwrap()).collect();
            assert_eq!(documented, columns, "{}", table.name);
        }
        let lateness = of("lateness");
        assert!(lateness.contains(&"lateness_ns INTEGER".to_owned()), "{lateness:?}");
        assert!(of("self_time").contains(&"own_ns INTEGER".to_owned()), "{:?}", of("self_time"));
    }
}
