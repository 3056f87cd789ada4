package tablestore

import java.nio.file.Files
import java.nio.file.attribute.PosixFilePermissions

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, LocalFileSystem, Path, RawLocalFileSystem}
import org.apache.hadoop.fs.permission.FsPermission
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager

/** Spark's files of a checkpoint, written as always, but on a local disk without two processes for each of them. */
class CheckpointFiles(path: Path, conf: Configuration)
    extends FileSystemBasedCheckpointFileManager(path, CheckpointFiles.withLocalFiles(conf))

object CheckpointFiles {

  /** Unless the user has chosen a class for local files, use ours, uncached: other files are not written with it. */
  def withLocalFiles(conf: Configuration): Configuration =
    if (conf.get("fs.file.impl") != null) conf
    else {
      val own = new Configuration(conf)
      own.setClassLoader(classOf[LocalFiles].getClassLoader)
      own.setClass("fs.file.impl", classOf[LocalFiles], classOf[FileSystem])
      own.setBoolean("fs.file.impl.disable.cache", true)
      own
    }
}

/** Hadoop's local file system, which runs `chmod` in a process if it lacks its native library; this one needs none. */
class LocalFiles extends LocalFileSystem(new RawLocalFileSystem {
      override def setPermission(path: Path, mode: FsPermission): Unit =
        if (mode.getStickyBit) super.setPermission(path, mode)
        else {
          val text = Seq(mode.getUserAction, mode.getGroupAction, mode.getOtherAction).map(_.SYMBOL).mkString
          Files.setPosixFilePermissions(pathToFile(path).toPath, PosixFilePermissions.fromString(text))
          ()
        }
    })
