//! Types: which of PostgreSQL's a column of SQLite has, and values in its formats.

use pgwire::api::Type;
use pgwire::api::results::{DataRowEncoder, FieldFormat, FieldInfo};
use pgwire::error::PgWireResult;
use query_planner::Value;

use super::errors;
use super::infer::Inferred;

/// A type of PostgreSQL.
#[derive(Debug, Clone, Copy)]
pub(super) struct PgType {
    pub(super) oid: i64,
    pub(super) name: &'static str,
    /// Its name in the standard.
    pub(super) long: &'static str,
    pub(super) len: i64,
    pub(super) category: &'static str,
    /// Number of its array type; 0: none.
    pub(super) array: i64,
}

const fn kind(
    oid: i64,
    name: &'static str,
    long: &'static str,
    len: i64,
    category: &'static str,
    array: i64,
) -> PgType {
    PgType { oid, name, long, len, category, array }
}

/// Types that clients look up, by PostgreSQL's own numbers (pg_type.dat).
pub(super) const ALL: &[PgType] = &[
    kind(16, "bool", "boolean", 1, "B", 1000),
    kind(17, "bytea", "bytea", -1, "U", 1001),
    kind(18, "char", "\"char\"", 1, "Z", 1002),
    kind(19, "name", "name", 64, "S", 1003),
    kind(20, "int8", "bigint", 8, "N", 1016),
    kind(21, "int2", "smallint", 2, "N", 1005),
    kind(23, "int4", "integer", 4, "N", 1007),
    kind(24, "regproc", "regproc", 4, "N", 1008),
    kind(25, "text", "text", -1, "S", 1009),
    kind(26, "oid", "oid", 4, "N", 1028),
    kind(114, "json", "json", -1, "U", 199),
    kind(700, "float4", "real", 4, "N", 1021),
    kind(701, "float8", "double precision", 8, "N", 1022),
    kind(705, "unknown", "unknown", -2, "X", 0),
    kind(1042, "bpchar", "character", -1, "S", 1014),
    kind(1043, "varchar", "character varying", -1, "S", 1015),
    kind(1082, "date", "date", 4, "D", 1182),
    kind(1083, "time", "time without time zone", 8, "D", 1183),
    kind(1114, "timestamp", "timestamp without time zone", 8, "D", 1115),
    kind(1184, "timestamptz", "timestamp with time zone", 8, "D", 1185),
    kind(1186, "interval", "interval", 16, "T", 1187),
    kind(1700, "numeric", "numeric", -1, "N", 1231),
    kind(2205, "regclass", "regclass", 4, "N", 2210),
    kind(2206, "regtype", "regtype", 4, "N", 2211),
    kind(2278, "void", "void", 4, "P", 0),
    kind(2950, "uuid", "uuid", 16, "U", 2951),
    kind(3802, "jsonb", "jsonb", -1, "U", 3807),
];

/// The type of a column with this declaration, by SQLite's rules of affinity; text without one.
pub(super) fn declared(decl_type: &str) -> PgType {
    let oid = of_declared(decl_type).map_or(25, |kind| i64::from(kind.oid()));
    ALL.iter().copied().find(|kind| kind.oid == oid).unwrap_or(ALL[8])
}

fn of_declared(decl_type: &str) -> Option<Type> {
    let decl_type = decl_type.to_ascii_uppercase();
    let has = |part: &str| decl_type.contains(part);
    match () {
        () if decl_type.is_empty() => None,
        () if decl_type == "BOOL" => Some(Type::BOOL),
        () if has("INT") => Some(Type::INT8),
        () if has("CHAR") || has("CLOB") || has("TEXT") => Some(Type::TEXT),
        () if has("BLOB") => Some(Type::BYTEA),
        () if has("REAL") || has("FLOA") || has("DOUB") => Some(Type::FLOAT8),
        () => None,
    }
}

/// PostgreSQL's type for what an expression is.
pub(super) fn of(inferred: Inferred) -> Type {
    match inferred {
        Inferred::Integer => Type::INT8,
        Inferred::Real => Type::FLOAT8,
        Inferred::Text => Type::TEXT,
        Inferred::Blob => Type::BYTEA,
    }
}

/// A type by PostgreSQL's name of it.
pub(super) fn named(name: &str) -> Option<Type> {
    let known = ALL.iter().find(|kind| kind.name == name || kind.long == name)?;
    Type::from_oid(u32::try_from(known.oid).ok()?)
}

/// The type of an array's elements; none of what is no array.
pub(super) fn element_of(array: &Type) -> Option<Type> {
    let known = ALL.iter().find(|kind| kind.array > 0 && kind.array == i64::from(array.oid()))?;
    Type::from_oid(u32::try_from(known.oid).ok()?)
}

/// The type of arrays of these; text's where there is none.
pub(super) fn array_of(element: &Type) -> Type {
    let known = ALL.iter().find(|kind| kind.oid == i64::from(element.oid())).map(|kind| kind.array);
    known.and_then(|oid| Type::from_oid(u32::try_from(oid).ok()?)).unwrap_or(Type::TEXT_ARRAY)
}

/// The type of a column: the declared one, if the first values agree, else theirs. In SQLite values
/// have types, columns only an affinity.
pub(super) fn seen<'a>(decl_type: &str, values: impl Iterator<Item = &'a Value>) -> Type {
    let mut found: Option<Type> = None;
    for value in values {
        let kind = match value {
            Value::Null => continue,
            Value::Integer(_) => Type::INT8,
            Value::Real(_) => Type::FLOAT8,
            Value::Text(_) => Type::TEXT,
            Value::Blob(_) => Type::BYTEA,
        };
        found = Some(match found {
            None => kind,
            Some(before) if before == kind => kind,
            Some(before) if is_number(&before) && is_number(&kind) => Type::FLOAT8,
            Some(_) => Type::TEXT,
        });
    }
    let declared = of_declared(decl_type);
    match (declared, found) {
        (Some(Type::BOOL), None | Some(Type::INT8)) => Type::BOOL,
        (Some(Type::FLOAT8), Some(Type::INT8)) => Type::FLOAT8,
        (declared, found) => found.or(declared).unwrap_or(Type::TEXT),
    }
}

fn is_number(kind: &Type) -> bool {
    *kind == Type::INT8 || *kind == Type::FLOAT8
}

/// Integers up to this are exact as doubles.
const EXACT: i64 = 1 << 53;

/// An infinity as PostgreSQL writes it: not all of its clients read SQLite's.
fn infinity(real: f64) -> &'static str {
    if real > 0.0 { "Infinity" } else { "-Infinity" }
}

/// A value as PostgreSQL's text.
///
/// # Errors
/// It is a text that PostgreSQL's cannot be.
pub(super) fn text(field: &FieldInfo, value: &Value) -> PgWireResult<String> {
    let refused = |is: &str| errors::data(format!("a value of column {} {is}: ask for hex() of it", field.name()));
    match value {
        Value::Real(real) if real.is_infinite() => Ok(infinity(*real).to_owned()),
        Value::Text(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) if text.contains('\0') => Err(refused("holds a NUL")),
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(refused("is not UTF-8")),
        },
        value => Ok(ask::output::cell_text(value)),
    }
}

/// Writes a value in its field's type and format.
///
/// # Errors
/// The value has another type than the column's first ones, and cannot be converted.
pub(super) fn encode(encoder: &mut DataRowEncoder, field: &FieldInfo, value: &Value) -> PgWireResult<()> {
    let kind = field.datatype();
    match (value, kind) {
        (Value::Null, _) => encoder.encode_field(&None::<i64>),
        (Value::Integer(integer), &Type::INT8) => encoder.encode_field(integer),
        (Value::Integer(integer), &Type::BOOL) => encoder.encode_field(&(*integer != 0)),
        (Value::Integer(integer), &Type::FLOAT8) if (-EXACT..=EXACT).contains(integer) => {
            encoder.encode_field(&(*integer as f64))
        }
        (Value::Real(real), &Type::FLOAT8) if real.is_infinite() && field.format() == FieldFormat::Text => {
            encoder.encode_field(&infinity(*real))
        }
        (Value::Real(real), &Type::FLOAT8) => encoder.encode_field(real),
        (Value::Blob(bytes), &Type::BYTEA) => encoder.encode_field(&bytes.as_slice()),
        (value, &Type::TEXT) => encoder.encode_field(&text(field, value)?),
        (value, kind) => {
            let is = match value {
                Value::Integer(_) => "an integer",
                Value::Real(_) => "a real",
                Value::Text(_) => "a text",
                _ => "a blob",
            };
            Err(errors::data(format!(
                "column {} began as {} and has {is} in a later row, as SQLite allows: say CAST({} AS TEXT)",
                field.name(),
                kind.name(),
                field.name()
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_get_the_type_of_their_values() {
        let [integer, real, text] = [Value::Integer(1), Value::Real(0.5), Value::Text((*b"x").into())];
        let of = |decl_type: &str, values: &[&Value]| seen(decl_type, values.iter().copied());
        assert_eq!(of("INTEGER", &[]), Type::INT8);
        assert_eq!(of("", &[]), Type::TEXT);
        assert_eq!(of("", &[&Value::Null, &integer]), Type::INT8);
        assert_eq!(of("", &[&integer, &real]), Type::FLOAT8);
        assert_eq!(of("REAL", &[&integer]), Type::FLOAT8);
        assert_eq!(of("INTEGER", &[&text]), Type::TEXT);
        assert_eq!(of("BOOL", &[&integer]), Type::BOOL);
        assert_eq!(declared("BIGINT").name, "int8");
        assert_eq!(declared("").name, "text");
    }
}
