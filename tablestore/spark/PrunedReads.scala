package tablestore

import com.fasterxml.jackson.databind.ObjectMapper
import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.plans.logical.{Filter, LogicalPlan, MapInArrow, Project}
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.types._

/** Lets the tasks of `frame_of_splits` read only the columns and the rows that a query uses.
  *
  * Spark pushes neither columns nor filters into a function in Python. Here the function gets them as a second column
  * of its input, in the form that `tablestore/read/spark_splits.py` parses, and returns only these columns. Spark
  * filters again.
  */
class PrunedReads extends (SparkSessionExtensions => Unit) {

  override def apply(extensions: SparkSessionExtensions): Unit = extensions.injectOptimizerRule(_ => PrunedReads)
}

object PrunedReads extends Rule[LogicalPlan] with PredicateHelper {

  /** The name of the function. */
  private val Reader = "tablestore_rows"
  private val Wanted = "wanted"
  private val Json = new ObjectMapper()

  private val ConstantsMax = 1000

  /** The comparisons that are told, each with the same one of the other side. */
  private val Mirrored = Map("=" -> "=", "<" -> ">", "<=" -> ">=", ">" -> "<", ">=" -> "<=")

  override def apply(plan: LogicalPlan): LogicalPlan = plan.transformDown {
    case project @ Project(_, rows: MapInArrow) if isRead(rows) =>
      project.copy(child = pruned(rows, project.references, asked(rows)))
    case project @ Project(_, filter @ Filter(_, rows: MapInArrow)) if isRead(rows) =>
      val used = project.references ++ filter.references
      project.copy(child = filter.copy(child = pruned(rows, used, filtered(rows, filter.condition))))
    case filter @ Filter(_, rows: MapInArrow) if isRead(rows) =>
      filter.copy(child = pruned(rows, rows.outputSet, filtered(rows, filter.condition)))
  }

  private def isRead(rows: MapInArrow): Boolean = rows.functionExpr match {
    case function: PythonUDF => function.name == Reader
    case _                   => false
  }

  /** A function returns at least one column: for a count, the smallest. */
  private def pruned(rows: MapInArrow, used: AttributeSet, conditions: Seq[Seq[String]]): MapInArrow = {
    val found = rows.output.filter(used.contains)
    val output = if (found.isEmpty) Seq(rows.output.minBy(_.dataType.defaultSize)) else found
    if (output.size == rows.output.size && conditions == asked(rows)) {
      return rows
    }
    val splits = rows.child match {
      case Project(Seq(_, named: Alias), below) if named.name == Wanted => below
      case below                                                       => below
    }
    val text = Json.writeValueAsString((output.map(_.name) +: conditions).map(_.toArray).toArray)
    val child = Project(Seq(splits.output.head, Alias(Literal(text), Wanted)()), splits)
    val schema = StructType(output.map(each => StructField(each.name, each.dataType, each.nullable)))
    val function = rows.functionExpr.asInstanceOf[PythonUDF].copy(dataType = schema, children = child.output)
    rows.copy(functionExpr = function, output = output, child = child)
  }

  /** The conditions that a function has got. */
  private def asked(rows: MapInArrow): Seq[Seq[String]] = rows.child match {
    case Project(Seq(_, Alias(Literal(text, StringType), Wanted)), _) =>
      Json.readValue(text.toString, classOf[Array[Array[String]]]).toSeq.tail.map(_.toSeq)
    case _ => Nil
  }

  /** The parts of a condition that compare a column with constants. */
  private def filtered(rows: MapInArrow, condition: Expression): Seq[Seq[String]] =
    splitConjunctivePredicates(condition).flatMap {
      case each @ BinaryComparison(column: Attribute, constant: Literal) if Mirrored.contains(each.symbol) =>
        told(rows, column, each.symbol, Seq(constant))
      case each @ BinaryComparison(constant: Literal, column: Attribute) if Mirrored.contains(each.symbol) =>
        told(rows, column, Mirrored(each.symbol), Seq(constant))
      case In(column: Attribute, list) =>
        val constants = list.collect { case constant: Literal => constant }
        if (constants.size == list.size) told(rows, column, "IN", constants) else None
      case InSet(column: Attribute, values) => told(rows, column, "IN", values.toSeq.map(Literal(_, column.dataType)))
      case _                                => None
    }

  private def told(rows: MapInArrow, column: Attribute, sign: String, constants: Seq[Literal]): Option[Seq[String]] =
    for {
      own <- rows.output.find(_.exprId == column.exprId)
      if constants.nonEmpty && constants.size <= ConstantsMax && constants.forall(canBeTold)
    } yield Seq(own.name, sign, constants.head.dataType.typeName) ++ constants.map(_.value.toString)

  private def canBeTold(constant: Literal): Boolean = constant.value != null && (constant.dataType match {
    // What is no UTF-8 cannot be told.
    case StringType                                               => !constant.value.toString.contains("\ufffd")
    case ByteType | ShortType | IntegerType | LongType | DateType => true
    case _                                                        => false
  })
}
