"""The store on a real Spark cluster whose executors have nothing but what the store ships to them."""
