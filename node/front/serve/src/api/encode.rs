//! Rows as bytes of an answer, in the form that was asked for.

use std::io;

use ask::output::{Format, Printer, quiet};
use axum::http::HeaderMap;
use model::Coverage;
use query_planner::{ColumnMeta, Value};
use serde::Deserialize;
use serde_json::json;
use utoipa::ToSchema;

use super::super::accept::preferred;
use super::super::problem::Problem;
use super::arrow::{Arrow, Container};

/// Forms of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Form {
    /// One object.
    Json,
    /// An object a row, the last line says who is in it.
    Ndjson,
    /// RFC 4180.
    Csv,
    /// An Arrow IPC stream.
    Arrow,
    /// A Parquet file.
    Parquet,
}

impl Form {
    /// As it was asked for: by the parameter, else by what the client accepts.
    ///
    /// # Errors
    /// Nothing that it accepts is known here.
    pub(super) fn chosen(named: Option<Self>, headers: &HeaderMap) -> Result<Self, Problem> {
        if let Some(named) = named {
            return Ok(named);
        }
        // (Without parameters, as ranges have none.)
        let named = |form: Self| (form.media_type().split(';').next().unwrap_or_default(), form);
        let forms = [Self::Json, Self::Ndjson, Self::Csv, Self::Arrow, Self::Parquet].map(named);
        preferred(headers, &forms).ok_or_else(|| {
            let known =
                "there are application/json, application/x-ndjson, text/csv, application/vnd.apache.arrow.stream and \
                 application/vnd.apache.parquet";
            Problem::new(axum::http::StatusCode::NOT_ACCEPTABLE, "wrong", known)
        })
    }

    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Ndjson => "application/x-ndjson",
            Self::Csv => "text/csv; charset=utf-8",
            Self::Arrow => "application/vnd.apache.arrow.stream",
            Self::Parquet => "application/vnd.apache.parquet",
        }
    }

    /// Whether the end of the body has the coverage.
    pub(super) fn ends_with_coverage(self) -> bool {
        matches!(self, Self::Json | Self::Ndjson | Self::Parquet)
    }
}

/// Writes one answer.
pub(super) enum Encoder {
    Text { form: Form, printer: Printer, bytes: Vec<u8> },
    Arrow(Box<Arrow>),
}

impl Encoder {
    pub(super) fn new(form: Form, columns: Vec<ColumnMeta>) -> Self {
        let format = match form {
            Form::Json => Format::Json,
            Form::Ndjson => Format::Ndjson,
            Form::Csv => Format::Csv,
            Form::Arrow => return Self::Arrow(Box::new(Arrow::new(Container::Ipc, columns))),
            Form::Parquet => return Self::Arrow(Box::new(Arrow::new(Container::Parquet, columns))),
        };
        Self::Text { form, printer: Printer::for_programs(format, columns), bytes: Vec::new() }
    }

    /// Takes the next rows.
    pub(super) fn rows(&mut self, rows: Vec<Vec<Value>>) -> Result<(), String> {
        match self {
            Self::Text { printer, bytes, .. } => printer.rows(rows, bytes).map_err(|error| error.to_string()),
            Self::Arrow(arrow) => {
                arrow.rows(rows);
                Ok(())
            }
        }
    }

    /// Bytes encoded so far.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Text { bytes, .. } => bytes.len(),
            Self::Arrow(arrow) => arrow.len(),
        }
    }

    /// Takes these bytes.
    pub(super) fn take(&mut self) -> Result<Vec<u8>, String> {
        match self {
            Self::Text { bytes, .. } => Ok(std::mem::take(bytes)),
            Self::Arrow(arrow) => arrow.take(),
        }
    }

    /// The rest.
    pub(super) fn end(self, coverage: &Coverage, elapsed_ms: f64) -> Result<Vec<u8>, String> {
        match self {
            Self::Arrow(arrow) => arrow.end(coverage),
            Self::Text { form, printer, mut bytes } => {
                let ended = printer.end(Some(coverage), elapsed_ms, &mut bytes, &mut io::sink());
                ended.map_err(|error| error.to_string())?;
                if form == Form::Ndjson {
                    let last = json!({ "coverage": coverage, "elapsed_ms": elapsed_ms });
                    bytes.extend_from_slice(quiet(&last.to_string()).as_bytes());
                    bytes.push(b'\n');
                }
                Ok(bytes)
            }
        }
    }
}
