package tablestore

import org.apache.spark.sql.{AnalysisException, SparkSessionExtensions}
import org.apache.spark.sql.catalyst.plans.logical.{LogicalPlan, TableSpec, TableSpecBase}
import org.apache.spark.sql.catalyst.plans.logical.{CreateTable, CreateTableAsSelect, ReplaceTable, ReplaceTableAsSelect}
import org.apache.spark.sql.execution.datasources.{CreateTable => CreateTableV1}

/** Refuses tables of Spark's catalog that use a data source of this program.
  *
  * Spark could not read such a table again by its name. Without this check it leaves an entry that cannot be read, or
  * fails with an internal error after a part of the work.
  */
class CreateTableCheck extends (SparkSessionExtensions => Unit) {

  override def apply(extensions: SparkSessionExtensions): Unit = extensions.injectCheckRule(_ => check)

  private def check(plan: LogicalPlan): Unit = plan.foreach {
    case create: CreateTable => refuse(create.tableSpec)
    case create: CreateTableAsSelect => refuse(create.tableSpec)
    case create: ReplaceTable => refuse(create.tableSpec)
    case create: ReplaceTableAsSelect => refuse(create.tableSpec)
    case create: CreateTableV1 => refuse(create.tableDesc.provider, create.tableDesc.storage.locationUri.map(_.toString))
    case _ =>
  }

  private def refuse(spec: TableSpecBase): Unit = spec match {
    case known: TableSpec => refuse(known.provider, known.options.get("path").orElse(known.location))
    case other => refuse(other.provider, None)
  }

  private def refuse(provider: Option[String], path: Option[String]): Unit =
    provider.map(_.toLowerCase).filter(CreateTableCheck.Sources.contains).foreach { source =>
      val options = if (source == "tablestore") s"path '${path.getOrElse("/path/of/the/table")}'" else "..."
      val create =
        if (source == "tablestore")
          " A new table is created by TableStore.create(spark, path, ...), and rows are written to it by " +
            "table.write(frame) or frame.write.format(\"tablestore\").mode(\"append\").save(path)."
        else ""
      throw new AnalysisException(
        "PYTHON_DATA_SOURCE_ERROR",
        Map(
          "action" -> "create a table with",
          "type" -> source,
          "msg" -> ("Spark could not read the table again by its name. Use CREATE TEMPORARY VIEW name USING " +
            s"${if (source.contains("-")) s"`$source`" else source} OPTIONS ($options), which takes INSERT INTO too.$create")
        )
      )
    }
}

object CreateTableCheck {
  val Sources: Set[String] = Set("tablestore", "kafka-table", "upsert-kafka")
}
