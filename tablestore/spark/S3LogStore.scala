package tablestore

import java.io.IOException
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.FileAlreadyExistsException
import java.util

import scala.jdk.CollectionConverters._

import io.delta.storage.S3SingleDriverLogStore
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, Path}

/** Delta's log store for S3, which creates a version by one conditional PUT (`If-None-Match: *`).
  *
  * Delta's own class looks whether the version exists and then puts it, so it replaces a version that another process
  * puts in between.
  */
class S3LogStore(conf: Configuration) extends S3SingleDriverLogStore(conf) {

  override def write(
      path: Path,
      actions: util.Iterator[String],
      overwrite: java.lang.Boolean,
      conf: Configuration
  ): Unit =
    if (overwrite) super.write(path, actions, overwrite, conf)
    else create(path.getFileSystem(conf), path, actions.asScala.map(_ + "\n").mkString.getBytes(UTF_8))

  private def create(fs: FileSystem, path: Path, data: Array[Byte]): Unit =
    try {
      val out = fs.createFile(path).overwrite(false).must("fs.option.create.conditional.overwrite", true).build()
      out.write(data)
      out.close()
    } catch {
      case error: IOException =>
        // The client repeats a request whose response was lost, and is then told that the version exists. So the
        // version that is there decides; no two commits have the same text.
        val found =
          try read(fs, path)
          catch { case other: IOException => error.addSuppressed(other); throw error }
        if (!util.Arrays.equals(found, data)) throw new FileAlreadyExistsException(path.toString)
    }

  private def read(fs: FileSystem, path: Path): Array[Byte] = {
    val in = fs.open(path)
    try in.readAllBytes()
    finally in.close()
  }
}
