//! Rows as bytes of an answer, in the form that was asked for.

use std::io;

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;
use model::Coverage;
use query_planner::{ColumnMeta, Value};
use serde::Deserialize;
use serde_json::json;
use utoipa::ToSchema;

use super::super::problem::Problem;
use crate::output::{Format, Printer, quiet};

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
        let accepted: Vec<&str> = headers
            .get_all(ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .collect();
        if accepted.is_empty() {
            return Ok(Self::Json);
        }
        let of = |range: &&str| match range.split(';').next().unwrap_or_default().trim() {
            "application/json" | "*/*" | "application/*" => Some(Self::Json),
            "application/x-ndjson" => Some(Self::Ndjson),
            "text/csv" | "text/*" => Some(Self::Csv),
            _ => None,
        };
        accepted.iter().find_map(of).ok_or_else(|| {
            let known = "there are application/json, application/x-ndjson and text/csv";
            Problem::new(axum::http::StatusCode::NOT_ACCEPTABLE, "wrong", known)
        })
    }

    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Ndjson => "application/x-ndjson",
            Self::Csv => "text/csv; charset=utf-8",
        }
    }

    /// Whether the body says who is in it.
    pub(super) fn says_coverage(self) -> bool {
        matches!(self, Self::Json | Self::Ndjson)
    }
}

/// Writes one answer.
pub(super) struct Encoder {
    form: Form,
    printer: Printer,
    bytes: Vec<u8>,
}

impl Encoder {
    pub(super) fn new(form: Form, columns: Vec<ColumnMeta>) -> Self {
        let format = match form {
            Form::Json => Format::Json,
            Form::Ndjson => Format::Ndjson,
            Form::Csv => Format::Csv,
        };
        Self { form, printer: Printer::for_programs(format, columns), bytes: Vec::new() }
    }

    /// Takes the next rows.
    pub(super) fn rows(&mut self, rows: Vec<Vec<Value>>) -> io::Result<()> {
        self.printer.rows(rows, &mut self.bytes)
    }

    /// Bytes that are there.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Takes them.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// The rest.
    pub(super) fn end(mut self, coverage: &Coverage, elapsed_ms: f64) -> io::Result<Vec<u8>> {
        self.printer.end(Some(coverage), elapsed_ms, &mut self.bytes, &mut io::sink())?;
        if self.form == Form::Ndjson {
            let last = json!({ "coverage": coverage, "elapsed_ms": elapsed_ms });
            self.bytes.extend_from_slice(quiet(&last.to_string()).as_bytes());
            self.bytes.push(b'\n');
        }
        Ok(self.bytes)
    }
}
