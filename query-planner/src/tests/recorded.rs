//! Three recorded stores of another tool, where they are at hand: `../shared/data/ingero` next to
//! the project, or `RANKMESH_INGERO=DIR`. Their tables have a column `node` of their own.

use std::path::PathBuf;

use rusqlite::{Connection, OpenFlags};

use super::mesh::Mesh;
use crate::{Catalog, Strategy, Value, harden};

fn mesh() -> Option<Mesh> {
    let dir = std::env::var_os("RANKMESH_INGERO")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/ingero"), PathBuf::from);
    let mut nodes = Vec::new();
    let mut catalogs = Vec::new();
    for i in 1..=3 {
        let file = dir.join(format!("sample-gpu-node-0{i}.db"));
        if !file.exists() {
            eprintln!("skipped: no {}", file.display());
            return None;
        }
        let uri = format!("file:{}?immutable=1", file.display());
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
        let mut conn = Connection::open_with_flags(uri, flags).expect("open");
        catalogs.push((format!("n{i}"), Catalog::of(&conn, &[]).expect("catalog")));
        harden(&mut conn).expect("harden");
        nodes.push((format!("n{i}"), conn));
    }
    let catalog = Catalog::union(&catalogs).expect("no conflicts");
    Some(Mesh { nodes, union: Connection::open_in_memory().expect("open"), catalog, shipped_rows: 0, in_pairs: false })
}

#[test]
fn recorded_stores_merge_to_known_figures() {
    let Some(mut mesh) = mesh() else { return };
    let integers = |rows: &[Vec<Value>]| -> Vec<Vec<i64>> {
        rows.iter()
            .map(|row| row.iter().map(|v| if let Value::Integer(i) = v { *i } else { i64::MIN }).collect())
            .collect()
    };
    let answer = mesh.ask("SELECT source, count(*) FROM events GROUP BY source ORDER BY source").expect("answer");
    assert_eq!(integers(&answer.rows), [[3, 219], [4, 76], [5, 305]]);
    let answer = mesh.ask("SELECT avg(duration)/1000 FROM events WHERE source=3").expect("answer");
    let Value::Real(mean) = answer.rows[0][0] else { panic!("{:?}", answer.rows) };
    assert!((mean - 27775.5517).abs() < 1e-4, "{mean}");
    let sql = "SELECT mesh_node, node, count(*) FROM events GROUP BY 1, 2 ORDER BY 1";
    assert_eq!(mesh.plan(sql).expect("plan").strategy, Strategy::Push);
    assert_eq!(mesh.ask(sql).expect("answer").rows.len(), 3);
    let answer = mesh.ask("SELECT node, source, count(*) FROM events GROUP BY node, source").expect("answer");
    assert!(answer.rows.len() >= 3, "{:?}", answer.rows);
    for table in mesh.catalog.tables.values().map(|table| table.name.clone()).collect::<Vec<_>>() {
        mesh.ask(&format!("SELECT * FROM {table} LIMIT 3")).unwrap_or_else(|error| panic!("{table}: {error}"));
        mesh.ask(&format!("SELECT count(*) FROM {table}")).unwrap_or_else(|error| panic!("{table}: {error}"));
    }
}
