-- What clients of PostgreSQL look up, as far as there is anything to say. Tables below the line are empty here as they would be in a
-- database without indexes, constraints, functions of its own and the like. Filled by catalog.rs.
CREATE TABLE pg_catalog.pg_namespace(oid INTEGER, nspname TEXT, nspowner INTEGER, nspacl TEXT);
CREATE TABLE pg_catalog.pg_class(oid INTEGER, relname TEXT, relnamespace INTEGER, reltype INTEGER DEFAULT 0, reloftype INTEGER DEFAULT 0,
  relowner INTEGER DEFAULT 10, relam INTEGER DEFAULT 0, relfilenode INTEGER DEFAULT 0, reltablespace INTEGER DEFAULT 0,
  relpages INTEGER DEFAULT 0, reltuples REAL DEFAULT -1, relallvisible INTEGER DEFAULT 0, reltoastrelid INTEGER DEFAULT 0,
  relhasindex BOOL DEFAULT 0, relisshared BOOL DEFAULT 0, relpersistence TEXT DEFAULT 'p', relkind TEXT, relnatts INTEGER,
  relchecks INTEGER DEFAULT 0, relhasrules BOOL DEFAULT 0, relhastriggers BOOL DEFAULT 0, relhassubclass BOOL DEFAULT 0,
  relrowsecurity BOOL DEFAULT 0, relforcerowsecurity BOOL DEFAULT 0, relispopulated BOOL DEFAULT 1, relreplident TEXT DEFAULT 'n',
  relispartition BOOL DEFAULT 0, relacl TEXT, reloptions TEXT, relpartbound TEXT, relhasoids BOOL DEFAULT 0);
CREATE TABLE pg_catalog.pg_attribute(attrelid INTEGER, attname TEXT, atttypid INTEGER, attlen INTEGER, attnum INTEGER,
  attcacheoff INTEGER DEFAULT -1, atttypmod INTEGER DEFAULT -1, attndims INTEGER DEFAULT 0, attbyval BOOL DEFAULT 0, attalign TEXT DEFAULT 'i',
  attstorage TEXT DEFAULT 'p', attcompression TEXT DEFAULT '', attnotnull BOOL DEFAULT 0, atthasdef BOOL DEFAULT 0,
  atthasmissing BOOL DEFAULT 0, attidentity TEXT DEFAULT '', attgenerated TEXT DEFAULT '', attisdropped BOOL DEFAULT 0,
  attislocal BOOL DEFAULT 1, attinhcount INTEGER DEFAULT 0, attcollation INTEGER DEFAULT 0, attstattarget INTEGER DEFAULT -1, attacl TEXT,
  attoptions TEXT, attfdwoptions TEXT, attmissingval TEXT);
CREATE TABLE pg_catalog.pg_type(oid INTEGER, typname TEXT, typnamespace INTEGER DEFAULT 11, typowner INTEGER DEFAULT 10, typlen INTEGER,
  typbyval BOOL DEFAULT 0, typtype TEXT DEFAULT 'b', typcategory TEXT, typispreferred BOOL DEFAULT 0, typisdefined BOOL DEFAULT 1,
  typdelim TEXT DEFAULT ',', typrelid INTEGER DEFAULT 0, typsubscript TEXT DEFAULT '-', typelem INTEGER DEFAULT 0, typarray INTEGER DEFAULT 0,
  typinput TEXT, typoutput TEXT, typreceive TEXT, typsend TEXT, typmodin TEXT DEFAULT '-', typmodout TEXT DEFAULT '-',
  typanalyze TEXT DEFAULT '-', typalign TEXT DEFAULT 'i', typstorage TEXT DEFAULT 'p', typnotnull BOOL DEFAULT 0,
  typbasetype INTEGER DEFAULT 0, typtypmod INTEGER DEFAULT -1, typndims INTEGER DEFAULT 0, typcollation INTEGER DEFAULT 0,
  typdefaultbin TEXT, typdefault TEXT, typacl TEXT);
CREATE TABLE pg_catalog.pg_description(objoid INTEGER, classoid INTEGER, objsubid INTEGER, description TEXT);
CREATE TABLE pg_catalog.pg_database(oid INTEGER, datname TEXT, datdba INTEGER, encoding INTEGER, datlocprovider TEXT, datistemplate BOOL,
  datallowconn BOOL, datconnlimit INTEGER, datcollate TEXT, datctype TEXT, dattablespace INTEGER, datacl TEXT, daticulocale TEXT,
  datcollversion TEXT, daticurules TEXT, datlocale TEXT);
CREATE TABLE pg_catalog.pg_roles(oid INTEGER, rolname TEXT, rolsuper BOOL, rolinherit BOOL, rolcreaterole BOOL, rolcreatedb BOOL,
  rolcanlogin BOOL, rolreplication BOOL, rolconnlimit INTEGER, rolpassword TEXT, rolvaliduntil TEXT, rolbypassrls BOOL, rolconfig TEXT);
CREATE VIEW pg_catalog.pg_user AS SELECT rolname AS usename, oid AS usesysid, rolcreatedb AS usecreatedb, rolsuper AS usesuper FROM pg_roles;
CREATE TABLE pg_catalog.pg_settings(name TEXT, setting TEXT, unit TEXT, category TEXT, short_desc TEXT, extra_desc TEXT, context TEXT,
  vartype TEXT, source TEXT, min_val TEXT, max_val TEXT, enumvals TEXT, boot_val TEXT, reset_val TEXT, sourcefile TEXT, sourceline INTEGER,
  pending_restart BOOL);
CREATE TABLE pg_catalog.pg_am(oid INTEGER, amname TEXT, amhandler TEXT, amtype TEXT);
CREATE VIEW pg_catalog.pg_tables AS SELECT n.nspname AS schemaname, c.relname AS tablename, 'rankmesh' AS tableowner, NULL AS tablespace,
  c.relhasindex AS hasindexes, c.relhasrules AS hasrules, c.relhastriggers AS hastriggers, c.relrowsecurity AS rowsecurity
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r';
CREATE VIEW pg_catalog.pg_views AS SELECT n.nspname AS schemaname, c.relname AS viewname, 'rankmesh' AS viewowner, NULL AS definition
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'v';
CREATE TABLE information_schema.schemata(catalog_name TEXT, schema_name TEXT, schema_owner TEXT);
CREATE TABLE information_schema.tables(table_catalog TEXT, table_schema TEXT, table_name TEXT, table_type TEXT,
  self_referencing_column_name TEXT, reference_generation TEXT, user_defined_type_catalog TEXT, user_defined_type_schema TEXT,
  user_defined_type_name TEXT, is_insertable_into TEXT DEFAULT 'NO', is_typed TEXT DEFAULT 'NO', commit_action TEXT);
CREATE TABLE information_schema.columns(table_catalog TEXT, table_schema TEXT, table_name TEXT, column_name TEXT, ordinal_position INTEGER,
  column_default TEXT, is_nullable TEXT DEFAULT 'YES', data_type TEXT, character_maximum_length INTEGER, character_octet_length INTEGER,
  numeric_precision INTEGER, numeric_precision_radix INTEGER, numeric_scale INTEGER, datetime_precision INTEGER, interval_type TEXT,
  collation_name TEXT, domain_name TEXT, udt_catalog TEXT, udt_schema TEXT DEFAULT 'pg_catalog', udt_name TEXT, is_identity TEXT DEFAULT 'NO',
  is_generated TEXT DEFAULT 'NEVER', generation_expression TEXT, is_updatable TEXT DEFAULT 'NO');
CREATE VIEW information_schema.views AS SELECT table_catalog, table_schema, table_name, NULL AS view_definition, 'NONE' AS check_option,
  'NO' AS is_updatable FROM tables WHERE table_type = 'VIEW';
-- Empty.
CREATE TABLE pg_catalog.pg_index(indexrelid INTEGER, indrelid INTEGER, indnatts INTEGER, indnkeyatts INTEGER, indisunique BOOL,
  indnullsnotdistinct BOOL, indisprimary BOOL, indisexclusion BOOL, indimmediate BOOL, indisclustered BOOL, indisvalid BOOL, indcheckxmin BOOL,
  indisready BOOL, indislive BOOL, indisreplident BOOL, indkey TEXT, indcollation TEXT, indclass TEXT, indoption TEXT, indexprs TEXT,
  indpred TEXT);
CREATE TABLE pg_catalog.pg_indexes(schemaname TEXT, tablename TEXT, indexname TEXT, tablespace TEXT, indexdef TEXT);
CREATE TABLE pg_catalog.pg_constraint(oid INTEGER, conname TEXT, connamespace INTEGER, contype TEXT, condeferrable BOOL, condeferred BOOL,
  convalidated BOOL, conrelid INTEGER, contypid INTEGER, conindid INTEGER, conparentid INTEGER, confrelid INTEGER, confupdtype TEXT,
  confdeltype TEXT, confmatchtype TEXT, conislocal BOOL, coninhcount INTEGER, connoinherit BOOL, conkey TEXT, confkey TEXT, conbin TEXT);
CREATE TABLE pg_catalog.pg_attrdef(oid INTEGER, adrelid INTEGER, adnum INTEGER, adbin TEXT);
CREATE TABLE pg_catalog.pg_inherits(inhrelid INTEGER, inhparent INTEGER, inhseqno INTEGER, inhdetachpending BOOL);
CREATE TABLE pg_catalog.pg_proc(oid INTEGER, proname TEXT, pronamespace INTEGER, proowner INTEGER, prolang INTEGER, prokind TEXT,
  proretset BOOL, pronargs INTEGER, prorettype INTEGER, proargtypes TEXT, proargnames TEXT, prosrc TEXT, proallargtypes TEXT, proargmodes TEXT, proargdefaults TEXT);
CREATE TABLE pg_catalog.pg_enum(oid INTEGER, enumtypid INTEGER, enumsortorder REAL, enumlabel TEXT);
CREATE TABLE pg_catalog.pg_range(rngtypid INTEGER, rngsubtype INTEGER, rngmultitypid INTEGER, rngcollation INTEGER, rngsubopc INTEGER);
CREATE TABLE pg_catalog.pg_collation(oid INTEGER, collname TEXT, collnamespace INTEGER, collprovider TEXT, collisdeterministic BOOL);
CREATE TABLE pg_catalog.pg_trigger(oid INTEGER, tgrelid INTEGER, tgname TEXT, tgfoid INTEGER, tgenabled TEXT, tgisinternal BOOL);
CREATE TABLE pg_catalog.pg_rewrite(oid INTEGER, rulename TEXT, ev_class INTEGER, ev_type TEXT, ev_enabled TEXT, is_instead BOOL);
CREATE TABLE pg_catalog.pg_policy(oid INTEGER, polname TEXT, polrelid INTEGER, polcmd TEXT, polpermissive BOOL, polroles TEXT, polqual TEXT,
  polwithcheck TEXT);
CREATE TABLE pg_catalog.pg_statistic_ext(oid INTEGER, stxrelid INTEGER, stxname TEXT, stxnamespace INTEGER, stxkeys TEXT, stxkind TEXT,
  stxstattarget INTEGER);
CREATE TABLE pg_catalog.pg_publication(oid INTEGER, pubname TEXT, pubowner INTEGER, puballtables BOOL);
CREATE TABLE pg_catalog.pg_publication_rel(oid INTEGER, prpubid INTEGER, prrelid INTEGER, prqual TEXT, prattrs TEXT);
CREATE TABLE pg_catalog.pg_publication_namespace(oid INTEGER, pnpubid INTEGER, pnnspid INTEGER);
CREATE TABLE pg_catalog.pg_foreign_table(ftrelid INTEGER, ftserver INTEGER, ftoptions TEXT);
CREATE TABLE pg_catalog.pg_foreign_server(oid INTEGER, srvname TEXT, srvowner INTEGER, srvfdw INTEGER);
CREATE TABLE pg_catalog.pg_sequence(seqrelid INTEGER, seqtypid INTEGER, seqstart INTEGER, seqincrement INTEGER, seqmax INTEGER,
  seqmin INTEGER, seqcache INTEGER, seqcycle BOOL);
CREATE TABLE pg_catalog.pg_sequences(schemaname TEXT, sequencename TEXT, sequenceowner TEXT, last_value INTEGER);
CREATE TABLE pg_catalog.pg_matviews(schemaname TEXT, matviewname TEXT, matviewowner TEXT, definition TEXT);
CREATE TABLE pg_catalog.pg_depend(classid INTEGER, objid INTEGER, objsubid INTEGER, refclassid INTEGER, refobjid INTEGER, refobjsubid INTEGER,
  deptype TEXT);
CREATE TABLE pg_catalog.pg_extension(oid INTEGER, extname TEXT, extowner INTEGER, extnamespace INTEGER, extrelocatable BOOL, extversion TEXT);
CREATE TABLE pg_catalog.pg_tablespace(oid INTEGER, spcname TEXT, spcowner INTEGER, spcacl TEXT, spcoptions TEXT);
CREATE TABLE pg_catalog.pg_partitioned_table(partrelid INTEGER, partstrat TEXT, partnatts INTEGER, partdefid INTEGER);
CREATE TABLE pg_catalog.pg_shdescription(objoid INTEGER, classoid INTEGER, description TEXT);
CREATE TABLE pg_catalog.pg_auth_members(roleid INTEGER, member INTEGER, grantor INTEGER, admin_option BOOL);
CREATE TABLE pg_catalog.pg_language(oid INTEGER, lanname TEXT, lanowner INTEGER);
CREATE TABLE pg_catalog.pg_opclass(oid INTEGER, opcmethod INTEGER, opcname TEXT, opcnamespace INTEGER, opcdefault BOOL);
CREATE TABLE pg_catalog.pg_stat_user_tables(relid INTEGER, schemaname TEXT, relname TEXT, n_live_tup INTEGER);
CREATE TABLE pg_catalog.pg_stat_activity(datid INTEGER, datname TEXT, pid INTEGER, usename TEXT, application_name TEXT, state TEXT, query TEXT);
CREATE TABLE pg_catalog.pg_locks(locktype TEXT, database INTEGER, relation INTEGER, pid INTEGER, mode TEXT, granted BOOL);
CREATE TABLE information_schema.table_constraints(constraint_catalog TEXT, constraint_schema TEXT, constraint_name TEXT, table_catalog TEXT,
  table_schema TEXT, table_name TEXT, constraint_type TEXT, is_deferrable TEXT, initially_deferred TEXT);
CREATE TABLE information_schema.key_column_usage(constraint_catalog TEXT, constraint_schema TEXT, constraint_name TEXT, table_catalog TEXT,
  table_schema TEXT, table_name TEXT, column_name TEXT, ordinal_position INTEGER, position_in_unique_constraint INTEGER);
CREATE TABLE information_schema.referential_constraints(constraint_catalog TEXT, constraint_schema TEXT, constraint_name TEXT,
  unique_constraint_schema TEXT, unique_constraint_name TEXT, match_option TEXT, update_rule TEXT, delete_rule TEXT);
CREATE TABLE information_schema.constraint_column_usage(table_catalog TEXT, table_schema TEXT, table_name TEXT, column_name TEXT,
  constraint_schema TEXT, constraint_name TEXT);
CREATE TABLE information_schema.routines(specific_schema TEXT, specific_name TEXT, routine_schema TEXT, routine_name TEXT, routine_type TEXT,
  data_type TEXT);
CREATE TABLE information_schema.sequences(sequence_schema TEXT, sequence_name TEXT, data_type TEXT);
CREATE TABLE information_schema.triggers(trigger_schema TEXT, trigger_name TEXT, event_object_table TEXT);

-- What pg_get_keywords() gives: keywords of PostgreSQL that are none of the SQL standard's.
CREATE TABLE pg_catalog.pg_keywords(word TEXT, catcode TEXT, catdesc TEXT);
INSERT INTO pg_catalog.pg_keywords
SELECT value, 'U', 'unreserved' FROM json_each('["analyse","analyze","copy","explain","ilike","isnull","limit","notnull","offset","reset","show","vacuum"]');
