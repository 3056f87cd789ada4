package tablestore

import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation
import org.apache.spark.sql.execution.datasources.v2.python.{PythonDataSourceV2, PythonTable}

/** Lets each query of a frame or view of this program's data sources read the current rows.
  *
  * Spark plans the read of a data source written in Python once for a relation, and its later queries would return the
  * rows of the first one.
  */
class CurrentReads extends (SparkSessionExtensions => Unit) {

  override def apply(extensions: SparkSessionExtensions): Unit = extensions.injectOptimizerRule(_ => CurrentReads)
}

object CurrentReads extends Rule[LogicalPlan] {

  private val source = {
    val field = classOf[PythonTable].getDeclaredField("ds")
    field.setAccessible(true)
    field
  }

  /** Forgets how relations were read; Spark plans that after it has optimized all parts of a query. */
  override def apply(plan: LogicalPlan): LogicalPlan = {
    plan.foreach {
      case relation: DataSourceV2Relation =>
        relation.table match {
          case table: PythonTable if isRead(table, relation) =>
            source.get(table).asInstanceOf[PythonDataSourceV2].setReadInfo(null)
          case _ =>
        }
      case _ =>
    }
    plan
  }

  /** Filters that the source has taken are in what Spark keeps. */
  private def isRead(table: PythonTable, relation: DataSourceV2Relation): Boolean =
    CreateTableCheck.Sources.contains(table.name.toLowerCase) && !relation.options.getBoolean("pushFilters", false)
}
