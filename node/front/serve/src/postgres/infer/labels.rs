//! Names of result columns that a statement gives none, as PostgreSQL gives them (`FigureColname` of
//! its `parse_target.c`): a function's, a type's, or `?column?`. Clients find columns by them.

use std::cell::OnceCell;
use std::iter::repeat_n;

use super::super::dialect;
use super::super::tokens::{Kind, Token, closing, parts, past_type};
use super::Look;

/// Of what has no name.
const NAMELESS: &str = "?column?";
/// Words that are values and have names; others are columns.
const VALUES: &[&str] = &[
    "current_user",
    "session_user",
    "user",
    "current_role",
    "current_catalog",
    "current_schema",
    "null",
    "true",
    "false",
];

/// The name of an expression, and whether it says so much that a cast or a CASE around it takes it.
type Label = Option<(String, bool)>;

impl Look<'_> {
    /// The names of a SELECT's columns, of which there are so many; none of those that are named, or
    /// are columns of tables. None at all where it is not clear which expression a column is.
    pub(super) fn labels(&self, count: usize) -> Option<Vec<Option<String>>> {
        let (begin, end) = self.list()?;
        let all = parts(self.tokens, begin, end);
        let stars = all.iter().filter(|&&(from, to)| self.is_star(from, to)).count();
        if stars > 1 {
            return None;
        }
        // A `*` stands for as many columns as the others leave.
        let of_star = (count + stars).checked_sub(all.len())?;
        let mut labels = Vec::with_capacity(count);
        for (from, to) in all {
            let here = if self.is_star(from, to) { of_star } else { 1 };
            labels.extend(repeat_n(self.label(from, to), here));
        }
        (labels.len() == count).then_some(labels)
    }

    fn label(&self, from: usize, to: usize) -> Option<String> {
        if self.is_star(from, to) || self.without_alias(from, to) != to || self.is_column(from, to) {
            return None;
        }
        Some(self.name_of(from, to).map_or_else(|| NAMELESS.to_owned(), |(name, _)| name))
    }

    /// Whether it is a name and nothing else, with those of its table and schema.
    fn is_column(&self, from: usize, to: usize) -> bool {
        let is_name = |at: usize| matches!(self.tokens[at].kind, Kind::Word | Kind::Quoted);
        let is_dotted = (from..to).all(|at| if (at - from).is_multiple_of(2) { is_name(at) } else { self.is(at, ".") });
        (to - from) % 2 == 1 && is_dotted && !(to - from == 1 && self.is_any(from, VALUES))
    }

    /// The name of the whole of `from..to`.
    fn name_of(&self, from: usize, to: usize) -> Label {
        self.deeper(|| self.named(from, to))
    }

    fn named(&self, from: usize, to: usize) -> Label {
        if from >= to {
            return None;
        }
        if let Some(cast) = self.top_level(from, to, |token| token.is("::")) {
            return self.of_cast(from, cast, to);
        }
        if self.is(from, "case") {
            return self.of_case(from, to);
        }
        if self.uncast_after(from) != Some(to) {
            return None;
        }
        if self.is(from, "(") {
            return match () {
                () if closing(self.tokens, from) != Some(to - 1) => None,
                () if self.is_any(from + 1, &["select", "with"]) => self.of_select(from + 1, to - 1),
                () if parts(self.tokens, from + 1, to - 1).len() > 1 => Some(("row".to_owned(), true)),
                () => self.name_of(from + 1, to - 1),
            };
        }
        let Some(open) = (from..to).find(|at| self.is(*at, "(")) else {
            return match self.tokens[to - 1].name()? {
                name if name == "null" => None,
                name if name == "true" || name == "false" => Some(("bool".to_owned(), false)),
                name => Some((name, true)),
            };
        };
        let name = self.tokens.get(open.checked_sub(1)?)?.name()?;
        if name == "cast" {
            let kind = self.top_level(open + 1, to - 1, |token| token.is("as"))?;
            let inner = self.name_of(open + 1, kind).filter(|(_, is_strong)| *is_strong);
            return inner.or_else(|| Some((dialect::type_name(&self.tokens.get(kind + 1)?.name()?), false)));
        }
        Some((name, true))
    }

    /// Of `x::type::type`.
    fn of_cast(&self, from: usize, cast: usize, to: usize) -> Label {
        let (mut at, mut kind) = (cast, None);
        while at < to && self.is(at, "::") {
            let qualified = 2 * usize::from(self.is(at + 2, "."));
            kind = self.tokens.get(at + 1 + qualified)?.name();
            at = past_type(self.tokens, at + 1);
        }
        if at != to {
            return None;
        }
        let inner = self.name_of(from, cast).filter(|(_, is_strong)| *is_strong);
        inner.or_else(|| Some((dialect::type_name(&kind?), false)))
    }

    /// The name of what stands behind ELSE, or `case`.
    fn of_case(&self, from: usize, to: usize) -> Label {
        let (mut depth, mut otherwise) = (0_usize, None);
        for at in from..to {
            match () {
                () if self.is(at, "case") => depth += 1,
                () if self.is(at, "else") && depth == 1 => otherwise = Some(at + 1),
                () if self.is(at, "end") => depth = depth.saturating_sub(1),
                () => {}
            }
            if depth == 0 && at + 1 < to {
                return None; // an operand of something
            }
        }
        let inner = otherwise.and_then(|otherwise| self.name_of(otherwise, to - 1)).filter(|(_, is_strong)| *is_strong);
        inner.or_else(|| Some(("case".to_owned(), false)))
    }

    /// The name of the first column of a SELECT in parentheses.
    fn of_select(&self, from: usize, to: usize) -> Label {
        let (tokens, depth, left) = (&self.tokens[from..to], self.depth.clone(), self.left.clone());
        let inner = Look { tokens, columns: self.columns, scopes: OnceCell::new(), depth, left };
        let (begin, end) = inner.list()?;
        let &(begin, end) = parts(tokens, begin, end).first()?;
        let found = match end.checked_sub(1).and_then(|last| tokens.get(last)) {
            Some(last) if inner.without_alias(begin, end) != end => last.name().map(|name| (name, true)),
            _ => inner.name_of(begin, end),
        };
        self.left.set(self.left.get().min(inner.left.get()));
        found
    }
}

/// The names of a statement's columns as PostgreSQL gives them; see [`Look::labels`].
pub(in super::super) fn labels(tokens: &[Token], count: usize) -> Vec<Option<String>> {
    if tokens.len() > super::MOST_TOKENS {
        return Vec::new();
    }
    Look::new(tokens, &super::Columns::default()).labels(count).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::super::tokens::tokens;
    use super::*;

    fn of(sql: &str, count: usize) -> Vec<Option<String>> {
        labels(&tokens(sql).unwrap(), count)
    }

    #[test]
    fn columns_without_a_name_have_postgresqls() {
        for (expression, label) in [
            ("1 + 1", NAMELESS),
            ("$1", NAMELESS),
            ("'x'", NAMELESS),
            ("-5", NAMELESS),
            ("NULL", NAMELESS),
            ("rank IS NULL", NAMELESS),
            ("func || 'x'", NAMELESS),
            ("NOT true", NAMELESS),
            ("count(*) + 1", NAMELESS),
            ("CASE WHEN a THEN 1 END + 1", NAMELESS),
            ("true", "bool"),
            ("count(*)", "count"),
            ("count(DISTINCT rank) FILTER (WHERE rank > 1)", "count"),
            ("row_number() OVER (ORDER BY rank)", "row_number"),
            ("sum(seq) OVER w", "sum"),
            ("(avg(seq))", "avg"),
            ("pg_catalog.version()", "version"),
            ("EXISTS (SELECT 1)", "exists"),
            ("current_user", "current_user"),
            ("CAST($1 AS BIGINT)", "int8"),
            ("CAST(rank AS TEXT)", "rank"),
            ("c.oid::pg_catalog.regclass::text", "oid"),
            ("1::int::text", "text"),
            ("'x'::varchar(3)", "varchar"),
            ("CASE WHEN a THEN 1 ELSE 2 END", "case"),
            ("CASE WHEN a THEN CASE WHEN b THEN 1 END ELSE func END", "func"),
            ("(SELECT count(*) FROM t)", "count"),
            ("(SELECT 1 AS one)", "one"),
            ("(SELECT 1)", NAMELESS),
            ("(1, 2)", "row"),
        ] {
            for sql in
                [format!("SELECT {expression} FROM t, u"), format!("WITH t AS (SELECT 7) SELECT ALL {expression}")]
            {
                assert_eq!(of(&sql, 1), [Some(label.to_owned())], "{sql}");
            }
        }
    }

    #[test]
    fn names_that_are_written_stay() {
        let mine = "SELECT rank, t.rank, \"Rank\", 1 + 1 AS sum, count(*) n, (rank) AS \"Count(*)\", $1 \"x\" FROM t";
        assert_eq!(of(mine, 7), vec![None; 7]);
        let count = || Some("count".to_owned());
        assert_eq!(of("SELECT *, count(*) FROM t UNION SELECT 1, 2, 3", 4), [None, None, None, count()]);
        assert_eq!(of("SELECT DISTINCT count(*), t.*, max(a) FROM t", 2), [count(), Some("max".to_owned())]);
        // Which of them are which is not known.
        for (sql, count) in [("SELECT *, t.*, 1 + 1 FROM t", 9), ("SELECT 1, 2", 3), ("VALUES (1, 2)", 2), ("", 1)] {
            assert_eq!(of(sql, count), Vec::new(), "{sql}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_tokens_make_it_fail(sql in "(select|case|when|else|end|cast|as|over|[a-z]{1,3}|[(\\[\\]).,=*]|::| |'x'|1){0,40}") {
            if let Ok(tokens) = tokens(&format!("SELECT {sql}")) {
                for count in 0..3 {
                    labels(&tokens, count);
                }
            }
        }
    }
}
