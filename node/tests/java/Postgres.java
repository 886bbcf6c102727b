import java.math.BigDecimal;
import java.sql.*;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;

/** Asks a server by PostgreSQL's JDBC driver; says that it went well. Usage: Postgres.java URL PASSWORD */
public class Postgres {
    static void same(Object found, Object expected) {
        if (!String.valueOf(found).equals(String.valueOf(expected))) throw new AssertionError(found + " is not " + expected);
    }

    static List<String> column(ResultSet rows, String name) throws SQLException {
        List<String> all = new ArrayList<>();
        while (rows.next()) all.add(rows.getString(name));
        return all;
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("user", "rankmesh");
        properties.setProperty("password", arguments[1]);
        try (Connection connection = DriverManager.getConnection(arguments[0], properties)) {
            prepared(connection);
            described(connection);
            streamed(connection);
        }
        System.out.println("JDBC");
    }

    static void prepared(Connection connection) throws SQLException {
        String sql = "SELECT rank, count(*) AS n, avg(duration_ns) AS mean FROM collectives GROUP BY rank HAVING count(*) > ? ORDER BY rank";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            // After five times the driver names the statement, and asks in binary form.
            for (int time = 0; time < 8; time++) {
                statement.setInt(1, 0);
                ResultSet rows = statement.executeQuery();
                rows.next();
                same(rows.getLong("n"), 100);
                same(rows.getDouble("mean") > 0, true);
                statement.setObject(1, 100, Types.OTHER);
                same(statement.executeQuery().next(), false);
            }
        }
        try (PreparedStatement statement = connection.prepareStatement(
                "SELECT count(*) FROM collectives WHERE rank = ? AND func = ? AND duration_ns >= ? AND (rank < 9) = ? AND ts_ns > ?")) {
            statement.setLong(1, 3);
            statement.setString(2, "all_reduce");
            statement.setBigDecimal(3, new BigDecimal("0.5"));
            statement.setBoolean(4, true);
            statement.setTimestamp(5, Timestamp.from(Instant.parse("2000-01-01T00:00:00Z")));
            ResultSet rows = statement.executeQuery();
            rows.next();
            same(rows.getLong(1), 100);
        }
        try (PreparedStatement statement = connection.prepareStatement("SELECT count(*) FROM collectives WHERE func <> ?")) {
            for (int time = 0; time < 8; time++) { // as text, and later in binary form
                statement.setObject(1, java.util.UUID.fromString("01234567-89ab-cdef-0123-456789abcdef"));
                ResultSet rows = statement.executeQuery();
                rows.next();
                same(rows.getLong(1), 800);
            }
        }
        try (PreparedStatement statement = connection.prepareStatement("SELECT CAST(? AS TEXT)")) {
            statement.setObject(1, java.util.UUID.fromString("01234567-89ab-cdef-0123-456789abcdef"));
            ResultSet rows = statement.executeQuery();
            rows.next();
            same(rows.getString(1), "01234567-89ab-cdef-0123-456789abcdef");
        }
        try (PreparedStatement statement = connection.prepareStatement("SELECT count(*) FROM collectives WHERE rank > ?")) {
            statement.setString(1, "7"); // a text beside a number
            try {
                statement.executeQuery();
                throw new AssertionError("a text was compared with a number");
            } catch (SQLException error) {
                same(error.getMessage().contains("CAST($1 AS INTEGER)"), true);
            }
        }
    }

    static void described(Connection connection) throws SQLException {
        DatabaseMetaData about = connection.getMetaData();
        same(column(about.getTables(null, "public", "collectives", new String[] {"TABLE"}), "TABLE_NAME"), "[collectives]");
        List<String> columns = column(about.getColumns(null, "public", "collectives", "ts_ns"), "TYPE_NAME");
        same(columns, "[int8]");
        same(column(about.getPrimaryKeys(null, "public", "collectives"), "COLUMN_NAME"), "[]");
        same(column(about.getImportedKeys(null, "public", "collectives"), "FKCOLUMN_NAME"), "[]");
        same(column(about.getIndexInfo(null, "public", "collectives", false, false), "INDEX_NAME"), "[]");
        same(column(about.getSchemas(), "TABLE_SCHEM").contains("public"), true);
        same(about.getSQLKeywords() != null, true);
        try (PreparedStatement statement = connection.prepareStatement("SELECT node, count(*) AS n FROM \"public\".\"collectives\" GROUP BY node")) {
            ResultSetMetaData of = statement.getMetaData();
            same(of.getColumnTypeName(1) + " " + of.getColumnTypeName(2), "text int8");
        }
    }

    static void streamed(Connection connection) throws SQLException {
        connection.setAutoCommit(false);
        try (Statement statement = connection.createStatement()) {
            statement.setFetchSize(50);
            ResultSet rows = statement.executeQuery("SELECT seq FROM collectives ORDER BY rank, seq");
            int count = 0;
            while (rows.next()) same(rows.getInt(1), count++ % 100);
            same(count, 800);
        }
        connection.commit();
        Savepoint point = connection.setSavepoint();
        connection.rollback(point);
        connection.setAutoCommit(true);
    }
}
